"""Patterns, plans, estimates, and the protocol of planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stitchcore.device.records import Device
from stitchcore.errors import Refusal
from stitchcore.fusion.mechanisms import ALL, Mechanisms
from stitchcore.hlo.ir.instruction import Computation, Instruction
from stitchcore.hlo.ir.module import Module


@dataclass(frozen=True)
class Pattern:
    """A convex set of instructions to become one kernel.

    `instructions` are in topological order and hold neither parameters nor inputs (constants and
    iotas that only the pattern needs are inside). `inputs` are the values read from outside and
    `outputs` the values others need, both in a fixed order: they are the kernel's buffers. What is
    cheaper computed again than read (constants, iotas, short scalar chains) and what only moves
    elements of one value (broadcast, reshape, slice, transpose) may stand in several patterns.
    """

    instructions: tuple[Instruction, ...]
    inputs: tuple[Instruction, ...]
    outputs: tuple[Instruction, ...]


@dataclass(frozen=True)
class Estimate:
    """What a kernel costs. `bytes` is off-chip traffic; `seconds` includes the launches."""

    bytes: int
    flops: int
    launches: int
    registers: int
    shared_bytes: int
    occupancy: float
    seconds: float


@dataclass(frozen=True)
class Bound:
    """How good the choice of patterns can be: what the exact planner proves (planner_exact.py).

    Seconds saved against every placed instruction as a kernel of its own, before anything is
    computed again: `saved` by the chosen patterns, `limit` by the best choice from the `pool`
    patterns at most. `closed`: both are equal, and the pool is whole. `missed` candidates were not
    looked at for want of time. `found` are the seconds that each other planner's patterns save.
    `rounds` counts the searches, each of which forbids what the last had wrong.
    """

    pool: int
    saved: float
    limit: float
    closed: bool
    rounds: int
    found: Mapping[str, float] = field(default_factory=dict)
    missed: int = 0


@dataclass(frozen=True)
class Tried:
    """One planner's plan among those that `auto` chose from. `seconds` are estimated for all its
    kernels, loop bodies' too, each once; `took` is how long planning took."""

    planner: str
    kernels: int
    seconds: float
    took: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Plan:
    """Patterns in a runnable order: disjoint but for what Pattern says may be repeated.

    `opaque` are the instructions outside every pattern that do work (library calls, refused ones),
    each with its reason in `refusals` (Refusal.subject is the instruction's name in the printed
    module). `unfused` and `planned` estimate the memory-intensive part, each instruction its own
    kernel against this plan. `nested` are the plans of the computations that control-flow
    instructions among `opaque` call. A value that is neither in a pattern nor opaque is a source
    (parameter, constant, tuple member) or a free view of one. `bound` is there where the planner
    proves one, `tried` where it chose among others' plans.
    """

    module: Module
    patterns: tuple[Pattern, ...]
    opaque: tuple[Instruction, ...]
    refusals: tuple[Refusal, ...]
    unfused: Estimate
    planned: Estimate
    planner: str
    nested: Mapping[Computation, Plan] = field(default_factory=dict)
    bound: Bound | None = None
    tried: tuple[Tried, ...] = ()


CostFunction = Callable[[Pattern, Device], Estimate]
"""Pure and memoised."""

Feasibility = Callable[[Pattern, Device], Refusal | None]
"""None when the pattern can be scheduled (schedule/), else why not; fusion imports no schedule."""


class Planner(Protocol):
    """A planner is a pure function; explore, exact and exhaustive are three of them."""

    def __call__(
        self,
        module: Module,
        device: Device,
        cost: CostFunction,
        feasible: Feasibility,
        mechanisms: Mechanisms = ALL,
    ) -> Plan: ...
