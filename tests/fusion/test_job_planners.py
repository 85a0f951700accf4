"""What `python -m bench.job_planners` calls the same code, and how its timing goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from bench import job_planners as bench
from bench.job_planners_time import Runs, Timing, net, regions_timed, timed
from bench.job_regions import REFUSED, Planned, Regions, in_child, planned, processor_seconds
from stitchcore.device.host import host_device
from stitchcore.fusion.planners import STITCHING
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.verify.timing import Ratio
from tests.jobs import judge as judges

SIZE = (64, 48)
JOB = judges.Job("mlp_function", "adam")


def chain(*opcodes: str) -> Module:
    value = x = builder.parameter(0, "f32", SIZE)
    for opcode in opcodes:
        value = builder.elementwise(opcode, value)
    return Module("chain", computation([x], builder.tuple_([value])))


# ---- regions -----------------------------------------------------------------------------------
def test_equal_kernels_are_equal_whoever_planned_them() -> None:
    """Kernels are named by keys that hold their planner; their code does not."""
    modules = {"a": chain(op.NEGATE, op.TANH), "b": chain(op.TANH, op.NEGATE)}
    first, other, apart = (
        planned(modules, host_device(), name) for name in ("exhaustive", "auto", "single")
    )
    assert first.launches == other.launches
    assert [len(first.launches[key]) for key in modules] == [1, 1]
    assert first.launches["a"] != first.launches["b"]
    assert [len(apart.launches[key]) for key in modules] == [2, 2]
    assert apart.launches["a"] == apart.launches["b"][::-1]
    assert first.estimated["a"] < apart.estimated["a"]


def test_a_region_that_kernels_cannot_cover_launches_none() -> None:
    x = builder.parameter(0, "f32", (1024, 1024))
    dims = {"lhs_contracting_dims": (1,), "rhs_contracting_dims": (0,)}
    product = instruction(op.DOT, x.shape, (x, x), **dims)
    module = Module(
        "dot", computation([x], builder.tuple_([builder.elementwise(op.TANH, product)]))
    )
    plans_of = planned({"a": module}, host_device(), "exhaustive")
    assert plans_of.launches == {"a": REFUSED}
    assert not plans_of.estimated


def test_a_child_leaves_nothing_behind() -> None:
    numbers: list[int] = []

    def call() -> int:
        numbers.append(1)
        return len(numbers)

    assert [in_child(call), in_child(call)] == [1, 1]
    assert not numbers


def test_a_dead_child_is_an_error() -> None:
    with pytest.raises(EOFError):
        in_child(lambda: os._exit(3))


def test_the_solver_is_part_of_planning() -> None:
    """It runs in a process of its own (stitchcore/fusion/set_packing_solver.py)."""
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert processor_seconds() - before >= 0.25  # what the kernel charges may lag behind a little


# ---- comparison --------------------------------------------------------------------------------
def plans(launches: dict[str, tuple[str, ...]]) -> Planned:
    return Planned(launches, dict.fromkeys(launches, 0.5), 2.0)


BASE = plans({"r": ("k", "l"), "s": ("k",), "t": ("m", "n")})
USES = {"r": 3, "s": 1, "t": 2}


def test_kernels_are_counted_as_often_as_their_region_stands_there() -> None:
    side = bench.side(BASE, BASE, USES)
    assert (side.kernels, side.estimated, side.planning) == (3 * 2 + 1 + 2 * 2, 3.0, 2.0)
    assert (side.same, side.alone, side.apart) == (True, (0, 0), ())


def test_what_only_one_has() -> None:
    other = plans({**BASE.launches, "r": ("k", "x", "y")})
    side = bench.side(other, BASE, USES)
    assert (side.same, side.alone, side.apart) == (False, (3, 6), ("r",))
    assert side.code != bench.side(BASE, BASE, USES).code


def test_another_order_is_not_the_same_code() -> None:
    side = bench.side(plans({**BASE.launches, "t": ("n", "m")}), BASE, USES)
    assert (side.same, side.alone, side.apart) == (False, (0, 0), ("t",))


def test_a_refused_region_has_no_kernels() -> None:
    other = replace(plans({**BASE.launches, "s": REFUSED}), estimated={"r": 0.5, "t": 0.25})
    side = bench.side(other, BASE, USES)
    assert (side.kernels, side.estimated) == (10, 2.0)
    assert (side.alone, side.apart) == ((1, 0), ("s",))


# ---- results -----------------------------------------------------------------------------------
TIMING = Timing((2e-3, 1e-3), Ratio(2.0, 1.9, 2.1), ((4.0, 2.0), (3.0, 2.0), (2.0, 2.0)), (11, 14))


def row(optimizer: str = "adam", other: Planned = BASE, timing: Timing | None = None) -> bench.Row:
    sides = {name: bench.side(BASE, BASE, USES) for name in STITCHING}
    sides[bench.OTHER] = bench.side(other, BASE, USES)
    return bench.Row("mlp_function", optimizer, USES, sides, timing)


APART = plans({**BASE.launches, "r": ("k", "x", "y")})


def test_the_table_tells_what_need_not_be_timed() -> None:
    assert bench.text([row()]).splitlines()[2].endswith("| the same code | the same code |")
    assert "1 of 1 jobs run the same code" in bench.text([row()])
    lines = bench.text([row(other=APART)]).splitlines()
    assert lines[2].endswith("| explore, exact | 3, 6 | not timed | not timed |")
    assert "0 of 1 jobs run the same code" in lines[4]


def test_the_table_tells_what_was_timed() -> None:
    text = bench.text([row(other=APART, timing=TIMING)])
    assert "| 2.000 [1.900, 2.100] (2.000, 1.000 ms) | 1.500 [" in text
    assert "(artifacts of" not in text
    lacking = replace(TIMING, kernels=(10, 14))
    assert "(artifacts of (10, 14) kernels)" in bench.text([row(other=APART, timing=lacking)])


def test_the_table_tells_what_is_not_there() -> None:
    text = bench.text([row(), row("sgd")])
    assert "Not compared yet: transformer_fit adam, transformer_fit sgd, cnn_fit adam" in text
    cases = [(script, optimizer) for script in bench.SCRIPTS for optimizer in bench.OPTIMIZERS]
    every = [replace(row(), script=script, optimizer=one) for script, one in cases]
    assert "Not compared yet" not in bench.text(every)


def test_a_job_without_a_graph_is_told_with_the_reason() -> None:
    failed = bench.Row("mlp_function", "sgd", {}, {}, failure="no graph")
    assert "| mlp_function | sgd | no graph |" in bench.text([row(), failed])


def test_results_are_read_back(tmp_path: Path) -> None:
    rows = [row(other=APART, timing=TIMING), row("sgd")]
    bench.write(rows, tmp_path / "results")
    assert bench.kept(tmp_path / "raw" / "results.json") == rows
    assert bench.kept(tmp_path / "none.json") == []


def test_timings_stay_with_the_code_that_was_timed() -> None:
    known = row(other=APART, timing=TIMING)
    again = bench.merged([row("sgd"), known], row(other=APART))
    assert again == [known, row("sgd")]
    changed = plans({**BASE.launches, "r": ("k", "x", "z")})
    assert bench.merged([known], row(other=changed)) == [row(other=changed)]


# ---- timing ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Told(Runs):
    """Runs that are told, not run."""

    asked: list[object] = field(default_factory=list)

    def artifacts(self, job: judges.Job) -> tuple[int, int]:
        self.asked.append("artifacts")
        return 11, 14

    def pair(self, job: judges.Job, number: int) -> tuple[float, float]:
        self.asked.append(number)
        return 4.0 - number, 2.0


def test_timing_goes_on_where_it_was() -> None:
    def regions() -> Timing:
        runs.asked.append("regions")
        return replace(TIMING, steps=(), kernels=None)

    runs = Told(Path(), ("exhaustive", "auto"), 50, 3)
    rounds = list(timed(JOB, None, regions, runs))
    assert [len(one.steps) for one in rounds] == [0, 1, 2, 3]
    assert rounds[-1] == TIMING
    assert runs.asked == ["regions", "artifacts", 0, 1, 2]
    runs.asked.clear()
    assert list(timed(JOB, rounds[2], regions, runs)) == rounds[3:]
    assert runs.asked == ["artifacts", 2]
    runs.asked.clear()
    assert list(timed(JOB, rounds[3], regions, runs)) == []
    assert runs.asked == []


@dataclass(frozen=True)
class Ordered(Runs):
    ran: list[str] = field(default_factory=list)

    def _run(self, job: judges.Job, planner: str, name: str) -> float:
        self.ran.append(planner)
        return {"exhaustive": 2.0, "auto": 1.0}[planner]


def test_every_other_pair_begins_with_the_other_planner() -> None:
    runs = Ordered(Path(), ("exhaustive", "auto"), 50, 2)
    assert [runs.pair(JOB, number) for number in range(2)] == [(2.0, 1.0)] * 2
    assert runs.ran == ["exhaustive", "auto", "auto", "exhaustive"]


def test_calls_from_python_are_taken_off_and_launches_put_on() -> None:
    work, idle = np.array([5.0, 1.0]), np.array([2.0, 3.0])
    assert net(work, idle, 0.5).tolist() == [3.5, 0.5]


def test_regions_are_timed_as_often_as_they_stand_there(tmp_path: Path) -> None:
    """On launches alone, which cost one as much as the other: an empty call has no work."""
    device = replace(host_device(), launch_seconds=1.0)
    regions = Regions({"a": chain(op.NEGATE, op.TANH)}, {"a": 3}, device, 1)
    timing = regions_timed(regions, ("a",), ("exhaustive", "single"), tmp_path)
    assert timing.seconds == pytest.approx((3.0, 6.0), rel=0.01)
    assert timing.regions.value == pytest.approx(0.5, rel=0.01)
