"""What a job measured, as a gateway's ledger has it: what its page says first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobGraph:
    """One graph of the job, by canonical digest. `phase` is `pending`, `ready` or `refused`, `swap`
    empty, `begun`, `ok`, `rolled-back` or `crashed`; `reason` why it was refused or rolled back.
    `ratio` is original over stitched step time with its 95 % interval, None until there is one."""

    digest: str
    key: str = ""
    phase: str = ""
    swap: str = ""
    reason: str = ""
    steps: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Job:
    """A job of one namespace. Seconds of `device` (a GPU's product, or "cpu": of cores): `saved`
    less `lost` is what was measured, `low` and `high` its 95 % interval (None: too few steps);
    `spent` on building its artifacts, which other jobs of the same graphs share."""

    name: str
    namespace: str
    device: str
    saved: float = 0.0
    lost: float = 0.0
    spent: float = 0.0
    low: float | None = None
    high: float | None = None
    graphs: tuple[JobGraph, ...] = ()

    @property
    def net(self) -> float:
        """The headline: what is left after all that it cost."""
        return self.saved - self.lost - self.spent
