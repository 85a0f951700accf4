"""Graphs that TensorFlow builds again and again, and what it costs to look at them each time.

The function of a loop over a dataset within a step is instantiated with every call of the step:
Grappler shows its graph each time, under another name, and the hook would parse, number and patch
it each time. Where that is more than a small share of the job's time, it is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

OFTEN = 8
"""Times that a graph is shown before anything is concluded: a swap builds some, too."""

SHARE = 0.01
"""What looking at it may take of the time since it was first shown."""

LEAST_SECONDS = 0.1
"""Below this nothing is concluded: a job begins with graphs shown one after the other."""


@dataclass
class Rebuilds:
    """Of one caller, or of graphs that none calls. Times are a monotonic clock's, in seconds;
    `programs`, by digest, are all whose graphs were shown under this name."""

    since: Optional[float] = None
    times: int = 0
    seconds: float = 0.0
    programs: Dict[str, Any] = field(default_factory=dict)

    def took(self, begin: float, end: float) -> bool:
        """Another graph was looked at; whether there it must end."""
        self.since = begin if self.since is None else self.since
        self.times += 1
        self.seconds += end - begin
        most = max(SHARE * (end - self.since), LEAST_SECONDS)
        return self.times > OFTEN and self.seconds > most
