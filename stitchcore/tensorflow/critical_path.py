"""When each group of a step can run, and when it must have run for the step not to take longer.

Independent groups that become one launch (remote stitching) save an operation of TensorFlow's
executor each, but the launch waits for the last input of any and what reads one waits for all:
library calls that ran side by side meet at a barrier. So they are merged only where that delays the
step by less than it saves. The step is a graph of calls with estimated seconds; it takes its
longest path, or all its work shared by the threads where that is more, and what lies between a
group's earliest start and its latest end is its slack (critical path method; Kelley and Walker
1959). Calls so short that the executor runs them one after the other, where they become ready, take
nothing here. A GPU runs a step's kernels in one stream: there nothing runs side by side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.inject.digest import LOOP_BACK
from stitchcore.tensorflow import op_allowlist
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.levels import Levels
from stitchcore.tensorflow.node_roles import LIBRARY, Classes, Part


@dataclass(frozen=True)
class Window:
    """In seconds from the step's start: when all inputs of a group are there, and when it must have
    ended; and the seconds that it takes."""

    earliest: float
    latest: float
    seconds: float

    def with_(self, other: Window) -> Window:
        """That of both in one launch."""
        return Window(
            max(self.earliest, other.earliest),
            min(self.latest, other.latest),
            self.seconds + other.seconds,
        )

    @property
    def delay(self) -> float:
        """How much longer the step takes for it, at the most."""
        return max(0.0, self.earliest + self.seconds - self.latest)


Groups = Sequence[tuple[int, ...]]


def merged(windows: Sequence[Window], allowed: float) -> list[list[int]]:
    """Windows' positions, put together in the order in which their groups can start, as long as
    each that joins delays the step by no more than `allowed` seconds."""
    parts: list[list[int]] = []
    now: Window | None = None
    for position in sorted(range(len(windows)), key=lambda p: (windows[p].earliest, p)):
        window = windows[position]
        both = window if now is None else now.with_(window)
        if now is None or both.delay - max(now.delay, window.delay) > allowed:
            parts.append([])
            both = window
        parts[-1].append(position)
        now = both
    return parts


def windows(
    graph: GraphIndex, classes: Classes, placed: Levels, groups: Groups, device: Device
) -> list[Window]:
    """Each group's window on a CPU, with every group as one launch. Unknown dimensions count at the
    nominal size (graph.py); linear in the graph but for one sort."""
    step = _Step(graph, classes, placed, groups, device)
    return [step.window(group[0]) for group in groups]


class _Step:
    """Calls of a step: groups, named by their first member, and nodes that are in none."""

    def __init__(
        self, graph: GraphIndex, classes: Classes, placed: Levels, groups: Groups, device: Device
    ) -> None:
        self._graph, self._device = graph, device.one_unit
        self._threads, self._inline = device.units, device.inline_seconds
        self._owner = list(range(len(graph.nodes)))
        for group in groups:
            for i in group:
                self._owner[i] = group[0]
        inside = {group[0]: group for group in groups}
        position = {i: p for p, i in enumerate(graph.order)}

        def turn(call: int) -> tuple[int, int, bool, int]:
            """What a level's groups read comes before them, except what copies their results."""
            grouped = call in inside
            copied = classes.parts[call] in (Part.CLONE, Part.READ)
            return placed.level[call], grouped or copied, not grouped, position[call]

        self._order = sorted({self._owner[i] for i in graph.order}, key=turn)
        self._sources: dict[int, set[int]] = {call: set() for call in self._order}
        self._users: dict[int, set[int]] = {call: set() for call in self._order}
        for i in graph.order:
            for source in (*(t.node for t in graph.data[i]), *graph.control[i]):
                if graph.nodes[source].op.endswith(LOOP_BACK) and "Merge" in graph.nodes[i].op:
                    continue
                if self._owner[source] != self._owner[i]:
                    self._sources[self._owner[i]].add(self._owner[source])
                    self._users[self._owner[source]].add(self._owner[i])
        self._seconds = {
            call: self._group(inside[call]) if call in inside else self._call(call, classes)
            for call in self._order
        }
        for call, seconds in self._seconds.items():
            if seconds < device.launch_seconds:  # the executor runs it where it becomes ready
                self._seconds[call] = 0.0
        self._end: dict[int, float] = {}
        for call in self._order:
            self._end[call] = self._start(call) + self._taken(call)
        self._latest: dict[int, float] = {}
        ends = self._ends()
        for call in reversed(self._order):
            users = [user for user in self._users[call] if user in self._latest]
            self._latest[call] = min(
                (self._latest[user] - self._taken(user) for user in users),
                default=ends[graph.frames[call]],
            )

    def window(self, call: int) -> Window:
        return Window(self._start(call), self._latest[call], self._taken(call))

    def _start(self, call: int) -> float:
        return max((self._end.get(source, 0.0) for source in self._sources[call]), default=0.0)

    def _ends(self) -> Mapping[str, float]:
        """By frame (a pass of a loop counts once): when all of it has ended, if no thread waits."""
        first: dict[str, float] = defaultdict(lambda: math.inf)
        last: dict[str, float] = defaultdict(float)
        work: dict[str, float] = defaultdict(float)
        for call in self._order:
            frame = self._graph.frames[call]
            first[frame] = min(first[frame], self._start(call))
            last[frame] = max(last[frame], self._end[call])
            work[frame] += self._seconds[call]
        return {f: max(last[f], first[f] + work[f] / self._threads) for f in last}

    def _taken(self, call: int) -> float:
        """Seconds until a call has ended: a long one has all threads."""
        seconds = self._seconds[call]
        return seconds if seconds < self._inline else seconds / self._threads

    def _group(self, group: tuple[int, ...]) -> float:
        inside = set(group)
        read = {t for i in group for t in self._graph.data[i] if t.node not in inside}
        made = {
            self._graph.data[user][position]
            for i in group
            for user, position in self._graph.consumers[i]
            if user not in inside and position >= 0
        }
        return self._moving({*read, *made})

    def _call(self, i: int, classes: Classes) -> float:
        if classes.parts[i] is not Part.OPAQUE or not self._graph.data[i]:
            return 0.0
        made = (Edge(i, port) for port in range(len(self._graph.output_types[i])))
        seconds = self._moving({*self._graph.data[i], *made})
        gemm = self._device.gemm
        if self._graph.nodes[i].op in LIBRARY and gemm is not None:
            seconds = max(seconds, operations(self._graph, i) / gemm.call.flops_per_second)
        return seconds

    def _moving(self, tensors: set[Edge]) -> float:
        moved = sum(self._graph.byte_size(t) for t in tensors if self._graph.dtype(t) != "resource")
        return moved / (self._device.bytes_per_second * self._device.cached_speedup)


def operations(graph: GraphIndex, i: int) -> float:
    """Multiplications and additions of a library's call; 0 of a pooling."""
    op, inputs = graph.nodes[i].op, graph.data[i]
    if "Conv" in op and len(inputs) > 1:
        backward = "Backprop" in op
        weights = Edge(i, 0) if op.endswith(("Filter", "FilterV2")) else inputs[1]
        result = inputs[2] if backward and len(inputs) > 2 else Edge(i, 0)
        channels = (graph.shape(weights) or (1,))[-2 if "Depthwise" in op else -1 :]
        return (
            2.0 * graph.static_size(result) * graph.static_size(weights)
            / max(1, math.prod(channels))
        )  # fmt: skip
    if op in op_allowlist.CONTRACTIONS and len(inputs) > 1:
        sizes = [graph.static_size(tensor) for tensor in (*inputs[:2], Edge(i, 0))]
        shape = graph.shape(Edge(i, 0)) or ()
        pairs = math.prod(abs(size) for size in shape[:-2])
        return 2.0 * math.sqrt(math.prod(sizes) / max(1, pairs))
    return 0.0
