"""Regional buffers: scratch of which each task touches a part of its own is its lanes' memory.

Where phases were merged, what one left for the next is read in the task that wrote it (AStitch's
regional scheme): shared memory holds that part of it, or registers if each lane reads its own
(register_reuse.py), and global memory sees none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import (
    Allocate,
    Buffer,
    Expression,
    If,
    Kernel,
    Load,
    Loop,
    Phase,
    Role,
    Scope,
    Section,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import accesses, buffers_of, mapped, statements
from stitchcore.schedule.buffers import aligned_bytes


def localize(kernel: Kernel, local_bytes: int, warps: int) -> Kernel:
    """`kernel` with the scratch that its tasks can keep to themselves in LOCAL buffers, as far as
    those of a group take no more than `local_bytes`; of its `warps`, where these have the tasks."""
    sections = [section for phase in kernel.phases for section in phase.sections]
    users: dict[Buffer, list[Section]] = {}
    for section in sections:
        read, stored = buffers_of(section)
        for buffer in read | stored:
            users.setdefault(buffer, []).append(section)
    changed: dict[Section, Section] = {}
    gone: set[Buffer] = set()
    for section in sections:
        room = local_bytes // (warps if section.scope is Scope.WARP else 1)
        room -= _local_bytes(section)
        own: dict[Buffer, Buffer] = {}
        for buffer in kernel.with_role(Role.SCRATCH):
            if users.get(buffer) != [section]:
                continue
            local = _own_part(buffer, section)
            size = None if local is None else aligned_bytes(local)
            if local is not None and isinstance(size, int) and size <= room:
                own[buffer] = local
                room -= size
        if own:
            body = (*map(Allocate, own.values()), *_kept(section.body, own))
            changed[section] = replace(section, body=body)
            gone |= own.keys()
    if not gone:
        return kernel
    buffers = tuple(buffer for buffer in kernel.buffers if buffer not in gone)
    phases = tuple(
        Phase(tuple(changed.get(section, section) for section in phase.sections))
        for phase in kernel.phases
    )
    offsets = (0,) * sum(buffer.role is Role.SCRATCH for buffer in buffers)
    return replace(kernel, buffers=buffers, phases=phases, scratch_offsets=offsets)


def _local_bytes(section: Section) -> int:
    sizes = (aligned_bytes(s.buffer) for s in statements(section.body) if isinstance(s, Allocate))
    return sum(size for size in sizes if isinstance(size, int))


def _own_part(buffer: Buffer, section: Section) -> Buffer | None:
    """What one task of `section`, which alone touches `buffer`, touches of it: its first dimensions
    are indexed by the task alone, and everywhere alike. None where that is not so."""
    at = [access.indices for access in accesses(section.body) if access.buffer == buffer]
    of_task = {section.variable}

    def is_fixed(indices: tuple[Index, ...]) -> bool:
        return len(set(indices)) == 1 and index.names(indices[0]) <= of_task

    fixed = len(list(takewhile(is_fixed, zip(*at, strict=True))))
    rest = buffer.dims[fixed:]
    if not rest or (not fixed and section.tasks != 1):
        return None
    if not all(isinstance(extent, int) for extent in rest):
        return None
    return replace(buffer, dims=rest, scope=section.scope, role=Role.LOCAL)


def _kept(body: Sequence[Statement], own: Mapping[Buffer, Buffer]) -> tuple[Statement, ...]:
    """`body` with loads and stores of scratch in the LOCAL buffer that it is now."""

    def loaded(node: Expression) -> Expression:
        if isinstance(node, Load) and node.buffer in own:
            local = own[node.buffer]
            return Load(local, node.indices[-len(local.dims) :])
        return node

    def stored(statement: Statement) -> Statement:
        if isinstance(statement, Loop | If):
            return replace(statement, body=tuple(map(stored, statement.body)))
        if isinstance(statement, Store) and statement.buffer in own:
            local = own[statement.buffer]
            indices = statement.indices[-len(local.dims) :]
            return replace(statement, buffer=local, indices=indices)
        return statement

    return tuple(map(stored, mapped(body, expression=loaded)))
