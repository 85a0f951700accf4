"""Programs that nobody tuned the product to: under `stitch run` they end as untouched, with every
line they print, random numbers included, and a step of theirs is stitched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.jobs import both

PROGRAMS = Path(__file__).resolve().parent / "programs"
SCRIPTS = {path.stem: path for path in sorted(PROGRAMS.rglob("*.py"))}
UNSEEDED = {"clone_cycle": slice(-1, None)}
"""Words of a line to compare where the others differ from run to run without the product too."""


def test_a_difference_is_seen() -> None:
    assert not both.differences(["step 3 0.50001"], ["step 3 0.50002"])
    assert both.differences(["step 3 0.5001"], ["step 3 0.5101"])
    assert both.differences(["a 0.5"], ["a 0.5", "b 0.4"]) == [("", "b 0.4")]
    assert both.differences(["a 0.5", "b 0.4"], ["a 0.5"]) == [("b 0.4", "")]
    assert both.differences(["step 3 nan"], ["step 3 0.5"])
    assert not both.differences(["step 0 0.7 0.31"], ["step 0 0.9 0.31"], slice(-1, None))
    assert both.differences(["step 0 0.7 0.31"], ["step 0 0.7 0.33"], slice(-1, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    tiers.nightly_but(
        *("beam_search", "fit_steps_per_execution", "fused_by_grappler", "kernel_random"),
        *("ref_update", "user_errors"),
        of=SCRIPTS,
    ),
)
def test_a_program_ends_as_untouched_and_is_stitched(program: str, tmp_path: Path) -> None:
    columns = UNSEEDED.get(program, slice(None))
    both.same_end(SCRIPTS[program], folder=tmp_path, columns=columns)
