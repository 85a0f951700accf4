"""What a job measured, as a gateway's ledger has it: what its page says first."""

from __future__ import annotations

from dataclasses import dataclass

from stitchcore.report.step_parts import Part


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


@dataclass(frozen=True)
class Measured:
    """What a job measured of one of its steps, as `stitch run` tells it. Seconds of a whole step,
    those after by the speed-up; `speedup` with its 95 % interval, None where that could not be
    told, and `verdict` says why; `cost` of its compilation, `command` and `machine` in words."""

    verdict: str
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    speedup: tuple[float, float, float] | None = None
    parts: tuple[Part, ...] = ()
    cost: str = ""
    command: str = ""
    machine: str = ""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of the seconds after."""
        if self.speedup is None:
            return None
        _, low, high = self.speedup
        return self.seconds_before / high, self.seconds_before / low
