"""One annotated job from `kubectl apply` to its savings, and the same job untouched beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.cluster import whole as wholes
from tests.cluster.whole import OPTIMIZE, Whole, asked
from tests.waiting import wait_for

STITCHED, PLAIN, REPLICAS = "mlp", "mlp-untouched", "replicas"
STEPS, PLAIN_STEPS, REPLICA_STEPS = 900, 500, 1500
SECONDS = 1200.0
TOTALS = (
    "stitch_cpu_core_seconds_saved_total",
    "stitch_cpu_core_seconds_lost_total",
    "stitch_cpu_core_seconds_spent_total",
)
Told = Callable[[str], None]


@dataclass(frozen=True)
class Thread:
    """What became of the annotated job. Losses by step; totals in core-seconds, by metric."""

    losses: dict[int, float]
    untouched: dict[int, float]
    stitched_job: dict[str, Any]
    table: str
    events: list[tuple[str, str]]
    totals: dict[str, float]
    images: dict[str, str]

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.stitched_job["status"])

    @property
    def apart(self) -> float:
        """Largest relative difference of the two jobs' losses, over the steps that both printed."""
        both = self.losses.keys() & self.untouched.keys()
        return max(abs(self.losses[s] / self.untouched[s] - 1) for s in both)

    def document(self) -> dict[str, Any]:
        """As `make demo-cluster` writes it."""
        return {**asdict(self), "largest_relative_difference": self.apart}


def follow(whole: Whole, prometheus: str, tell: Told) -> Thread:
    """Trains the annotated job, then the untouched one. Raises NotUp where one of them fails."""
    whole.train(STITCHED, {OPTIMIZE: "true"}, STEPS)
    found: dict[str, Any] = {}
    for found in whole.phases(STITCHED, SECONDS):
        status = found.get("status", {})
        tell(f"{STITCHED}: {status.get('phase', 'no StitchedJob yet')} {status.get('reason', '')}")
    net = wait_for(lambda: _net(prometheus) or False, "Prometheus has scraped what was saved")
    tell(f"Prometheus: {net:.1f} core-seconds saved, net of what was lost")
    table = whole.cluster.kubectl("get", "stitchedjobs", "--namespace", wholes.TEAM)
    whole.train(PLAIN, {}, PLAIN_STEPS)
    wait_for(lambda: whole.ended(PLAIN), f"{PLAIN} ends", seconds=SECONDS)
    (losses,), (untouched,) = whole.losses(STITCHED), whole.losses(PLAIN)
    return Thread(
        losses=losses,
        untouched=untouched,
        stitched_job=found,
        table=table,
        events=whole.events(STITCHED),
        totals={name: asked(prometheus, name) for name in TOTALS},
        images=whole.images(),
    )


def _net(prometheus: str) -> float:
    saved, lost, _ = (asked(prometheus, name) for name in TOTALS)
    return saved - lost


def follow_replicas(whole: Whole, tell: Told) -> tuple[dict[str, Any], list[str]]:
    """Two joined replicas in two pods; their StitchedJob and the checksums of their variables."""
    whole.train_replicas(REPLICAS, {OPTIMIZE: "true"}, REPLICA_STEPS)
    found: dict[str, Any] = {}
    for found in whole.phases(REPLICAS, SECONDS):
        tell(f"{REPLICAS}: {found.get('status', {}).get('phase', 'no StitchedJob yet')}")
    sums = [wholes.VARIABLES.findall(text)[0] for text in whole.logs(REPLICAS)]
    return found, sums
