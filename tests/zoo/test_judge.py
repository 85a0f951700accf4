"""The zoo's judge takes what two right runs may differ by, and nothing else: a mutant per claim."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.zoo import __main__ as zoo
from bench.zoo import runs
from bench.zoo.judge import Run, distance, judge

random = np.random.default_rng(0)
W, SLOT = (random.normal(size=(8, 8)).astype("float32") for _ in range(2))
STEPS = tuple(
    {"w": W * (1 + k), "slot": SLOT * 1e-6, "count": np.array(k), "half": W.astype("float16")}
    for k in range(3)
)
PLAIN = Run(0, ("step 1 0.50000", "step 2 0.25000", "the same True"), STEPS)


def scaled(run: Run, name: str, factor: float, step: int = 0) -> Run:
    steps = list(run.steps)
    array = steps[step][name]
    steps[step] = {**steps[step], name: (array * factor).astype(array.dtype)}
    return replace(run, steps=tuple(steps))


RIGHT = [
    scaled(PLAIN, "w", 1 + 1e-5),
    replace(PLAIN, printed=("step 1 0.50010", *PLAIN.printed[1:])),
]


def element(run: Run) -> Run:
    array = run.steps[0]["w"].copy()
    array[3, 4] += 1e-2
    return replace(run, steps=({**run.steps[0], "w": array}, *run.steps[1:]))


def nan(run: Run) -> Run:
    return scaled(run, "slot", float("nan"), 2)


def printed(*lines: str) -> Callable[[Run], Run]:
    return lambda run: replace(run, printed=lines)


MUTANTS: dict[str, Callable[[Run], Run]] = {
    "another exit code": lambda run: replace(run, code=1),
    "ended by a signal": lambda run: replace(run, code=143),
    "a wrong number": printed("step 1 0.50100", *PLAIN.printed[1:]),
    "a wrong number where right runs agree": printed(
        PLAIN.printed[0], "step 2 0.25030", "the same True"
    ),
    "a wrong count": printed(PLAIN.printed[0], "step 3 0.25000", "the same True"),
    "a nan": printed(PLAIN.printed[0], "step 2 nan", "the same True"),
    "another word": printed(*PLAIN.printed[:2], "the same False"),
    "a missing line": printed(*PLAIN.printed[:2]),
    "a line too many": printed(*PLAIN.printed, "and more"),
    "a line twice": printed(PLAIN.printed[0], *PLAIN.printed),
    "a variable off by four times what right runs are": lambda run: scaled(run, "w", 1 + 4e-5),
    "a slot off where right runs agree": lambda run: scaled(run, "slot", 1 + 2e-6),
    "a slot that stays small but is doubled": lambda run: scaled(run, "slot", 2.0),
    "one element": element,
    "an array off at a later step": lambda run: scaled(run, "w", 1 + 1e-3, 2),
    "a half off by two units": lambda run: scaled(run, "half", 1 + 2.5 * 2**-10),
    "a count": lambda run: replace(run, steps=({**run.steps[0], "count": np.array(7)}, *STEPS[1:])),
    "a nan in an array": nan,
    "another shape": lambda run: replace(run, steps=({**run.steps[0], "w": W[:4]}, *STEPS[1:])),
    "another type": lambda run: replace(
        run, steps=({**STEPS[0], "w": W.astype("float64")}, *STEPS[1:])
    ),
    "an array not recorded": lambda run: replace(run, steps=({"w": W}, *STEPS[1:])),
    "a step not recorded": lambda run: replace(run, steps=STEPS[:2]),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    assert judge(PLAIN, RIGHT, MUTANTS[mutant](PLAIN)).wrong


def test_the_same_run_passes() -> None:
    verdict = judge(PLAIN, RIGHT, PLAIN)
    assert not verdict.wrong and verdict.same


@pytest.mark.parametrize(
    "ours",
    [
        scaled(PLAIN, "w", 1 + 2e-5),
        scaled(PLAIN, "slot", 1 + 5e-7),
        scaled(scaled(PLAIN, "w", 1 + 2e-5), "w", 1 + 5e-5, 1),  # rounding spreads
        scaled(PLAIN, "half", 1 + 2.0**-10),
        replace(PLAIN, printed=("step 1 0.50025", *PLAIN.printed[1:])),
        replace(PLAIN, printed=(PLAIN.printed[0], "step 2 0.25002", PLAIN.printed[2])),
    ],
)
def test_what_right_runs_differ_by_passes(ours: Run) -> None:
    verdict = judge(PLAIN, RIGHT, ours)
    assert not verdict.wrong
    assert verdict.same == (ours.steps is PLAIN.steps)


def test_a_right_run_that_ended_otherwise_says_nothing() -> None:
    failed = replace(scaled(PLAIN, "w", 2.0), code=1)
    assert judge(PLAIN, [failed], scaled(PLAIN, "w", 1.5)).wrong


# ---- Adam's first step ---------------------------------------------------------------------------
RATE = 1e-3
NAMES = {
    "Keras 3": (
        "000 001 dense/kernel",
        "001 001 adam/learning_rate",
        "001 002 adam/dense_kernel_momentum",
    ),
    "Keras 2": (
        "000 001 dense/kernel:0",
        "001 001 Adam/learning_rate:0",
        "001 002 Adam/m/dense/kernel:0",
    ),
}


def adam(names: Sequence[str], factor: float, moment: float, also: float = 0.0) -> Run:
    """A variable one step of Adam after W, `factor` rates along; its first moment is `moment`, less
    what right runs' lie apart where that is below 1e-6. Another element is `also` off."""
    weights, moments = W.copy(), SLOT.copy()
    weights[0, 0] += factor * RATE
    weights[5, 5] += also
    moments[0, 0] = moment
    step = dict(zip(names, (weights, np.array(RATE, "float32"), moments), strict=True))
    return Run(0, (), (step, step))


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_a_step_of_adam_along_what_is_not_told_from_zero_has_either_sign(
    names: Sequence[str],
) -> None:
    made = functools.partial(adam, names)
    plain, right = made(1.0, 2e-7), [made(0.9, 5e-7)]
    assert not judge(plain, right, made(-1.0, -3e-7)).wrong
    assert judge(plain, right, made(-2.0, -3e-7)).wrong  # farther than a step
    assert judge(plain, right, made(-1.0, -3e-7, also=RATE)).wrong  # another element
    assert judge(plain, right, made(-1.0, -1e-3)).wrong  # the moment itself
    assert judge(made(1.0, 1e-3), [made(0.9, 1e-3)], made(-1.0, 1e-3)).wrong  # is told from zero


def test_distances() -> None:
    assert distance(np.array([3.0, np.nan]), np.array([3.0, np.nan])) == 0
    assert distance(np.array([np.inf]), np.array([-np.inf])) == np.inf
    assert distance(np.array([1.0, -4.0]), np.array([2.0, -4.0])) == 0.25
    assert distance(np.array(["a"]), np.array(["b"])) == np.inf
    assert distance(np.zeros(2), np.zeros(2)) == 0
    assert distance(np.ones(2), np.zeros(2)) == np.inf


# ---- runs and rows -------------------------------------------------------------------------------
def test_what_a_run_leaves_is_read(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nprint('loss 1.0')\n"
        "open(os.path.join(os.environ['ZOO_OUT'], 'times'), 'w').write('1.0\\n1.5\\n')\n"
        "os.kill(os.getpid(), 15) if sys.argv[1] == 'killed' else sys.exit(3)\n"
    )
    for how, code in (("killed", 143), ("left", 3)):
        runs.run([runs.sys.executable, "-u", str(program), how], tmp_path / how, {}, 60)
        made = runs.read(tmp_path / how)
        assert (made.code, made.printed, made.seconds) == (code, ("loss 1.0",), (0.5,))


def test_a_program_that_hangs_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "hangs.py"
    program.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(runs, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(runs, "UNTOUCHED_SECONDS", 0.2)
    row = zoo.measure("hangs", program)
    assert "no end within" in row.note and not row.as_untouched
    assert "hangs: Failed: no end" in zoo.text([row])


def test_a_row_that_differs_is_told() -> None:
    row = zoo.Row("other", wrong=("exit code 1, untouched 0",), stitched=1, steps=2)
    told = zoo.text([row, zoo.Row("good", stitched=1, steps=1)])
    assert told.startswith("1 of 2 end as untouched, 2 have a step stitched.")
    assert "| other | **no** | 1 of 2 |" in told and "- other: exit code 1" in told


def test_what_is_left_is_told_by_bytes_over_all_programs() -> None:
    left = {"library_call": {"MatMul": 3_000_000, "Conv2D": 1_000_000}}
    more = {"library_call": {"MatMul": 1_000_000}, "control_flow": {"If": 5_000_000}}
    told = zoo.text([zoo.Row("one", left=left), zoo.Row("two", refused=("few_calls",), left=more)])
    assert "library_call 100%" in told and "few_calls, control_flow 83%, library_call 17%" in told
    rows = ["| `library_call` | 5 | 2 | MatMul 4, Conv2D 1 |", "| `control_flow` | 5 | 1 | If 5 |"]
    assert "\n".join(rows) in told
