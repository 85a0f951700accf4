"""A region made wrong on purpose: the job's own data shows it, and only it is taken back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import faults

pytestmark = pytest.mark.slow


def events(base: Path) -> list[dict[str, Any]]:
    """Of the last run over a store."""
    files = (base / "store" / "sessions").glob("*/events.jsonl")
    last = max(files, key=lambda path: path.stat().st_mtime)
    return [json.loads(line) for line in last.read_text().splitlines()]


def counted(found: list[dict[str, Any]]) -> dict[str, int]:
    """What the plug-in had counted at last; the command's end may be told after it."""
    told = [event["counters"] for event in found if "counters" in event]
    return dict(told[-1])


def taken_back(found: list[dict[str, Any]]) -> list[str]:
    """The regions that were, with what they made."""
    told = [event for event in found if event["type"] == "refused"]
    return [event["detail"] for event in told if event["reason"] == "wrong_result"]


def test_a_wrong_region_alone_is_taken_back(tmp_path: Path) -> None:
    prepared = faults.prepare("fault_fit", tmp_path / "made")
    right = counted(events(prepared.store))
    assert right["compared"] == prepared.kernels and right["left_to_functions"] == 0
    outcome = faults.run(prepared, "native:value:1", 1, tmp_path)
    assert outcome.survived(prepared), outcome.errors[-3000:]
    assert outcome.lines[0] == prepared.lines[0]  # the shadow call: TensorFlow's own numbers
    assert outcome.status == "stitched"
    (said,) = outcome.said
    assert said.startswith("[stitch] wrong_result: region ") and " instead of " in said
    base = tmp_path / "fault_fit-native-value-1-1"
    found = events(base)
    (detail,) = taken_back(found)
    counters = counted(found)
    # Each once more in the graph that was built anew, but for those of the region. Until then its
    # calls are its function's: a few, or none where that graph is there before the next step.
    assert prepared.kernels < counters["compared"] < 2 * prepared.kernels
    assert counters["left_to_functions"] < 100
    again = faults.stitched([sys.executable, str(prepared.program)], base)
    assert again.survived(prepared) and again.said == () and again.status == "stitched"
    found = events(base)
    assert taken_back(found) == [detail.replace(": ", ": on an earlier start's data ", 1)]
    assert counted(found)["compared"] == counters["compared"] - prepared.kernels
    assert counted(found)["left_to_functions"] == 0
