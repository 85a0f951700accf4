"""What the compiler makes of every workload, as a table: a change that loses fusion is seen as a
diff of kernels.txt.

    python -m tests.expected

Kernels are the distinct ones, launches and bytes the plan's own estimates for one step with the
bodies of its loops once, lines those of the generated source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import BuildOptions, ModuleState, stages_for
from stitchcore.device.records import DEVICES
from stitchcore.fusion.text import bodies
from stitchcore.hlo.transforms.pad_bounded import padded
from tools.fingerprint import TARGETS, names, workload

TABLE = Path(__file__).with_name("kernels.txt")
COLUMNS = ("workload", "target", "kernels", "launches", "bytes", "bytes unfused", "lines")
Row = tuple[str, ...]


def row(name: str, target: str, planner: str = BuildOptions().planner) -> Row:
    """The figures of a workload for a target."""
    device = DEVICES[target]
    module = workload(name) if device.kind == "cpu" else padded(workload(name))
    *until_emit, _ = stages_for(device)
    state = run(until_emit, ModuleState(module, device, BuildOptions(planner=planner)))
    assert state.plan is not None
    plans = (state.plan, *bodies(state.plan).values())
    figures = (
        len(state.kernels),
        sum(plan.planned.launches for plan in plans),
        sum(plan.planned.bytes for plan in plans),
        sum(plan.unfused.bytes for plan in plans),
        sum(source.text.count("\n") for source in state.sources),
    )
    return (name, target, *(f"{figure:,}" for figure in figures))


def written(rows: Iterable[Row]) -> str:
    """The table of these rows, in columns."""
    lines = [COLUMNS, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f"{_aligned(line, widths)}\n" for line in lines)


def _aligned(line: Row, widths: Sequence[int]) -> str:
    cells = zip(line, widths, range(len(widths)), strict=True)
    return "  ".join(
        cell.ljust(width) if number < 2 else cell.rjust(width) for cell, width, number in cells
    )


def read() -> dict[tuple[str, str], Row]:
    """The rows of the table, by workload and target."""
    _, *lines = (tuple(line.split()) for line in TABLE.read_text().splitlines())
    return {(line[0], line[1]): line for line in lines}


def main() -> None:
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(row, *zip(*product(names(), TARGETS), strict=True)))
    TABLE.write_text(written(rows))
    print(TABLE.read_text(), file=sys.stderr)


if __name__ == "__main__":
    main()
