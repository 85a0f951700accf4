"""What bench/kills.py tells of losses that last long is asserted by night."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from bench import kills


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("loss", kills.LONG_LOSSES)
def test_what_is_away_for_ten_minutes_harms_no_job(loss: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting the store's volume needs root: run as root")
    assert list(kills.measured(loss)) == [kills.Row(loss, len(kills.POINTS), 0, 0, 0)]
