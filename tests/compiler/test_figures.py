"""What is told of bytes and reasons: one figure on the terminal, in reports and manifest."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitchcore.cli import run_summary
from stitchcore.cli.run_job import Record
from stitchcore.device.host import host_device
from stitchcore.errors import Reason, Refusal
from stitchcore.optimize import pipeline
from stitchcore.report.markup import saved_text
from stitchcore.tensorflow import live_bytes
from stitchcore.tensorflow.coverage import coverage, region_bytes
from stitchcore.verify.regions import Verification
from tests.optimize.test_pipeline import DIGEST, options_in, submit

KEPT = 2
"""Regions that the limit leaves: of those that save more than half of their bytes the smallest."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Told:
    """Of one artifact: the manifest, report.json, the page, `stitch run`'s JSON and its lines."""

    manifest: dict[str, Any]
    report: dict[str, Any]
    page: str
    document: dict[str, Any]
    lines: str
    slower: int  # regions whose structure was refused as slower
    limited: int


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A captured step of which the limit drops all but two regions, and one structure is slower."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patched:
        counted: dict[str, int] = {}

        def measured(state: pipeline.RequestState) -> pipeline.RequestState:
            assert state.verification is not None
            uses = [key for key in state.regions.values() if key in state.programs]
            slow = max(set(uses), key=uses.count)
            counted["slower"] = uses.count(slow)
            refused = {slow: Refusal(slow[:12], Reason.SLOWER, "made so")}
            return pipeline._verified(state, Verification(state.verification.regions, refused))

        def limited(partition: Any, chosen: Any, more: int) -> Any:
            before = live_bytes.peak(partition, ())
            saves = {}
            for region, _, _ in chosen:
                best = coverage(partition, {}, {region.name: 0}).saved
                if best > 0.5 * sum(region_bytes(partition.graph, region.members)):
                    saves[region.name] = best
            kept = sorted(saves, key=saves.__getitem__)[:KEPT]
            dropped = [region.name for region, _, _ in chosen if region.name not in kept]
            counted["limited"] = len(dropped)
            return {name: Refusal(name, Reason.MEMORY, "small") for name in dropped}, before, before

        patched.setattr(live_bytes, "limited", limited)
        stages = [replace(s, run=measured) if s.name == "measure" else s for s in pipeline.STAGES]
        patched.setattr(pipeline, "STAGES", tuple(stages))
        options = options_in(folder)
        key = pipeline.optimize(
            submit(options.store), str(options.store), host_device(), options
        )  # fmt: skip
    assert isinstance(key, str), key
    made = options.store / "artifacts" / key
    record = Record()
    record.add({"type": "swap_begin", "digest": DIGEST, "key": key})
    whole = run_summary.of(record, options.store)
    out = io.StringIO()
    run_summary.show(whole, Console(file=out, width=400))
    return Told(
        json.loads((made / "manifest.json").read_text()),
        json.loads((made / "report.json").read_text()),
        (made / "report.html").read_text(),
        run_summary.document(whole)["steps"][0],
        out.getvalue(),
        **counted,
    )


def test_one_figure_everywhere(told: Told) -> None:
    expect = told.manifest["expect"]
    figures = (expect["bytes_saved"], expect["bytes_saveable"])
    assert 0 < figures[0] < 0.2 * figures[1], "of all that could be saved, not of what is stitched"
    assert 1 - expect["bytes_after"] / expect["bytes_before"] > 0.3
    for other in (told.report, told.document):
        assert (other["bytes_saved"], other["bytes_saveable"]) == figures
    text = saved_text(*figures)
    assert f"bytes saved per step {text}" in told.lines
    assert f">{text}<" in told.page
    assert "memory-intensive part" not in told.lines


def test_dropped_regions_are_counted_one_by_one(told: Told) -> None:
    refusals = told.manifest["refusals"]
    assert refusals["memory"] == told.limited > 1
    assert refusals["slower"] == told.slower > 1
    assert told.document["refusals"] == refusals
    assert f"{told.limited} x memory" in told.lines and f"{told.slower} x slower" in told.lines


def test_their_operations_have_the_reason(told: Told) -> None:
    regions = told.report["regions"]
    for reason, count in (("memory", told.limited), ("slower", told.slower)):
        left = {n["region"] for n in told.report["nodes"] if n.get("reason") == reason}
        assert len(left) == count and not any(regions[number]["stitched"] for number in left)
        assert told.report["refusals"][reason] >= count
    assert sum(region["stitched"] for region in regions) == KEPT
