"""How many values of a kernel live where: AStitch's local, regional and global schemes, counted in
the loop IR itself and not in the plan that led to it."""

from __future__ import annotations

from stitchcore.loop_ir.nodes import Accumulate, Allocate, Kernel, Let, Role, Scope
from stitchcore.loop_ir.visitor import statements


def count(kernel: Kernel) -> dict[str, int]:
    """Values by scheme: `local` are scalars and registers of a lane, `regional` what lanes of a
    group share (buffers, and sums they make together), `global` what phases pass on by memory."""
    local, regional = set(), set()
    for number, phase in enumerate(kernel.phases):
        for place, section in enumerate(phase.sections):
            for statement in statements(section.body):
                where = (number, place)
                match statement:
                    case Let():
                        local.add((where, statement.scalar.name))
                    case Accumulate():
                        regional.add((where, statement.scalar.name))
                    case Allocate():
                        own = statement.buffer.scope is Scope.LANE
                        (local if own else regional).add((where, statement.buffer.name))
    return {
        "local": len(local),
        "regional": len(regional),
        "global": len(kernel.with_role(Role.SCRATCH)),
    }
