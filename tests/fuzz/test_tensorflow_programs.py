"""The fuzzer of TensorFlow programs reproduces, finds what is planted, reduces it to a few lines,
and finds nothing in ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from tests.fuzz import tensorflow_programs as fuzz
from tests.fuzz.tensorflow_draw import OPTIMIZERS, Program, draw, in_float32, smaller, text


def test_a_program_is_a_function_of_seed_and_number() -> None:
    assert text(draw(1, 5)) == text(draw(1, 5))
    assert len({text(draw(1, number)) for number in range(100)}) == 100


def test_what_is_drawn_is_wide() -> None:
    everything = "".join(text(draw(0, number)) for number in range(400))
    for word in ("float16", "bfloat16", "float64", "while_loop", "tf.cond", "switch_case", "ids",
                 "mask", "unknown, width = (16, 19, 16, 15), True", *OPTIMIZERS):  # fmt: skip
        assert word in everything, word


def test_a_smaller_program_is_one() -> None:
    """Every value is made before it is used, and the last ones remain the results."""
    for number in range(60):
        for program in smaller(draw(2, number)):
            made = {"x"}
            for statement in program.statements:
                assert {value.name for value in statement.uses} <= made
                made.add(statement.value.name)
            assert {value.name for value in program.results} <= made and program.results
            assert text(program) != text(draw(2, number))


def test_a_finding_is_reduced_to_a_few_lines() -> None:
    numbers = [n for n in range(300) if "tf.atan2" in text(draw(3, n))]
    longest = max(numbers, key=lambda n: len(draw(3, n).statements))

    def same(candidates: Mapping[str, Program]) -> list[str]:
        return [name for name, one in candidates.items() if "tf.atan2" in text(one)]

    small = fuzz.reduced(draw(3, longest), same)
    assert len(draw(3, longest).statements) > 7 and len(small.statements) <= 3
    assert "tf.atan2" in text(small) and small.optimizer == OPTIMIZERS[0]


# ---- judging -------------------------------------------------------------------------------------
PLAIN: dict[str, Any] = {
    "0/loss": np.float32(2.0),
    "0/0": np.full((8, 4), 0.5, "float32"),
    "1/loss": np.float32(1.0),
}
DRAWN: dict[str, Any] = {"random/drawn": np.array([0.1, 0.7], "float32")}


def _judged(tmp_path: Path, ours: dict[str, Any] | None) -> fuzz.Outcome | None:
    program = Program((), (), OPTIMIZERS[0], (4,), False, 8)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir(exist_ok=True)
    np.savez(tmp_path / "theirs/p.0.npz", **PLAIN, **DRAWN)
    np.savez(tmp_path / "theirs/p.1.npz", **{**PLAIN, "0/loss": np.float32(2.00001)})
    if ours is not None:
        np.savez(tmp_path / "ours/p.0.npz", **{**PLAIN, **DRAWN, **ours})
    return fuzz.judge(program, "p", tmp_path / "ours", tmp_path / "theirs", 1)


@pytest.mark.parametrize(
    "ours",
    [
        None,
        {"0/loss": np.float32(2.0001)},
        {"0/0": np.full((8, 4), 0.500002, "float32")},
        {"1/loss": np.float32(np.nan)},
        {"random/drawn": np.array([0.1, 0.8], "float32")},
    ],
)
def test_a_mutant_is_found(ours: dict[str, Any] | None, tmp_path: Path) -> None:
    found = _judged(tmp_path, ours)
    assert found is not None and found.wrong


def test_what_right_runs_differ_by_passes(tmp_path: Path) -> None:
    found = _judged(tmp_path, {"0/loss": np.float32(2.00002)})
    assert found is not None and not found.wrong


@pytest.mark.parametrize(("ours", "right"), [(0.52, True), (0.6, False)])
def test_what_short_types_cost_passes(ours: float, right: bool, tmp_path: Path) -> None:
    """As far as the untouched run lies from its own in float32, three times; no farther."""
    (tmp_path / "theirs").mkdir()
    inexact = np.full((8, 4), 0.51, "float32")
    np.savez(tmp_path / f"theirs/p{fuzz.PRECISE}.0.npz", **{**PLAIN, **DRAWN, "0/0": inexact})
    found = _judged(tmp_path, {"0/0": np.full((8, 4), ours, "float32")})
    assert found is not None and bool(found.wrong) != right


def test_a_program_in_float32_has_no_short_types() -> None:
    programs = [draw(0, number) for number in range(200)]
    exact = [source for source in map(in_float32, programs) if source]
    assert len(exact) > 20 and not any("float16'" in source for source in exact)
    assert not any(in_float32(program) for program in programs if program.short == "float32")


def test_what_tensorflow_does_not_run_is_no_finding(tmp_path: Path) -> None:
    program = Program((), (), OPTIMIZERS[0], (4,), False, 8)
    assert fuzz.judge(program, "p", tmp_path, tmp_path, 1) is None


# ---- whole runs ----------------------------------------------------------------------------------
@pytest.mark.slow
def test_programs_run_as_untouched(tmp_path: Path) -> None:
    findings = fuzz.Findings()
    fuzz.fuzz(17, range(8), tmp_path, findings, math.inf)
    assert not findings.problems
    assert findings.programs == 8 and findings.stitched >= 6, findings


COSINE = """
from stitchcore.compiler import stages
real = stages.compile_c
def planted(source, *rest, **named):
    return real(source.replace("st_sine_f32(", "st_cosine_f32("), *rest, **named)
stages.compile_c = planted
"""
TRUSTING = """
from dataclasses import replace
from stitchcore.optimize import pipeline
verify = pipeline.verify
pipeline.verify = lambda *rest, **named: replace(verify(*rest, **named), refused={})
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("plant", [COSINE, COSINE + TRUSTING])
def test_a_wrong_kernel_is_found_and_reduced(plant: str, tmp_path: Path) -> None:
    """Whether the worker saw it or the job got it."""
    number = next(n for n in range(100) if "tf.sin(" in text(draw(5, n)))
    findings = fuzz.Findings()
    fuzz.fuzz(5, [number, *range(200, 204)], tmp_path, findings, math.inf, plant)
    (problem,) = findings.problems
    assert problem.number == number and "tf.sin(" in problem.text
    assert problem.outcome.wrong or problem.outcome.faults
    assert problem.text.count("\n    v") <= 3


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_two_thousand_programs_run_as_untouched(tmp_path: Path) -> None:
    findings = fuzz.run_all(0, range(2000), 2, tmp_path, 1200.0)
    assert not findings.problems
    assert findings.stitched > 0.9 * findings.programs
