"""Programs of the zoo end as untouched, a step of each stitched. `make zoo` tells more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.zoo import runs
from tests import tiers

SLICE = ("custom_gradients", "fork_in_mid_run", "monitored_session", "ragged_rows")
"""Those of `make test`: quick ones that need no package beside TensorFlow, each of a kind that no
program of tests/jobs is."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", tiers.nightly_but(*SLICE, of=runs.programs()))
def test_a_program_ends_as_untouched_and_is_stitched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "KEPT", tmp_path)
    _, ours, verdict = runs.judged(runs.programs()[name])
    assert not verdict.wrong
    assert ours.stitched or name not in SLICE, (ours.refused, ours.left)
