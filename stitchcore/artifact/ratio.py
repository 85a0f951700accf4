"""How much faster a step may become by an artifact, as its worker measured: it bounds claims."""

from __future__ import annotations

import json

from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import MANIFEST

REPORT = "report.json"
HIGHEST = 1e6
UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, RecursionError),  # numbers and lists of JSON may be of any size and depth
)


def step_ratio(report: bytes, manifest: bytes) -> float:
    """Original over stitched step time, at most: 1.0 to HIGHEST.

    A step is sped up by no more than its best region, so that is the bound: the lower end of the
    regions' measured stitched/original intervals. Where none was timed it is the manifest's
    estimate, and 1.0 where there is none. Raises Refused(BAD_ARTIFACT).
    """
    try:
        regions = json.loads(report).get("regions", ())
        proofs = [region.get("proof") or {} for region in regions if region.get("stitched")]
        lows = [float(proof["ratio"][0]) for proof in proofs if proof.get("ratio")]
        if lows and min(lows) > 0:
            return min(max(1.0, 1 / min(lows)), HIGHEST)
        expect = json.loads(manifest).get("expect", {})
        before, after = (float(expect.get(f"seconds_{name}", 0)) for name in ("before", "after"))
        return min(max(1.0, before / after), HIGHEST) if before > 0 and after > 0 else 1.0
    except UNREADABLE as error:
        raise Refused(REPORT, Reason.BAD_ARTIFACT, f"its measured ratio: {error!r}") from error


def stored_ratio(store: Store, key: str) -> float:
    """`step_ratio` of a published artifact. Raises Refused: STORE_UNREADABLE, BAD_ARTIFACT."""
    report = store.read("artifacts", key, REPORT)
    return step_ratio(report, store.read("artifacts", key, MANIFEST))
