"""Where the nodes of a graph stand: layers from sources to sinks, folded like columns of a paper.

A training step is deep and narrow, a screen is wide: the layers run down a column as far as it
goes and on at the top of the next. All of it takes time linear in nodes and edges but for sorting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120, 30
"""Of a node, in pixels at scale 1."""
STEP_X, STEP_Y = WIDTH + 12, HEIGHT + 26
COLUMN_GAP = 72
MOST_ABREAST = 12
"""Nodes of a layer side by side; further ones stand in rows below."""
ASPECT = 1.9
"""Width over height that the whole should have."""
SWEEPS = 2

Inputs = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Layout:
    """Upper left corners in pixels by node, in `rows` of nodes from left to right. `layers` is the
    layer of each node: no node stands above what it reads, but for the edge that closes a loop."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    layers: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    width: int
    height: int


def place(inputs: Inputs) -> Layout:
    """The layout of a graph: `inputs[v]` are the nodes that `v` reads, each in range."""
    layers = layered(inputs)
    rows, starts = _rows(_ordered(inputs, layers))
    columns = _columns([len(row) for row in rows], starts)
    x, y = [0] * len(inputs), [0] * len(inputs)
    left = bottom = right = 0
    for first, last in columns:
        wide = max(len(row) for row in rows[first:last])
        for number in range(first, last):
            row = rows[number]
            indent = left + (wide - len(row)) * STEP_X // 2
            for position, v in enumerate(row):
                x[v], y[v] = indent + position * STEP_X, (number - first) * STEP_Y
        right = left + wide * STEP_X - (STEP_X - WIDTH)
        left = right + COLUMN_GAP
        bottom = max(bottom, (last - first) * STEP_Y - (STEP_Y - HEIGHT))
    return Layout(tuple(x), tuple(y), tuple(layers), tuple(map(tuple, rows)), right, bottom)


def layered(inputs: Inputs) -> list[int]:
    """Longest distance of each node from a source; a source stands right above its first reader.
    The edge that closes a loop is not counted."""
    layers, after = _distances(inputs)
    nearest: list[int | None] = [None] * len(inputs)
    for v, read in enumerate(inputs):
        for u in read:
            if after[v] > after[u]:
                known = nearest[u]
                nearest[u] = layers[v] if known is None else min(known, layers[v])
    for v, read in enumerate(inputs):
        reader = nearest[v]
        if not read and reader is not None:
            layers[v] = max(layers[v], reader - 1)
    return layers


def _distances(inputs: Inputs) -> tuple[list[int], list[int]]:
    """Longest distances, and the order in which nodes were finished (inputs first)."""
    distances, after = [0] * len(inputs), [0] * len(inputs)
    state = bytearray(len(inputs))  # 0 new, 1 entered, 2 done
    finished = 0
    for start in range(len(inputs)):
        stack = [start]
        while stack:
            v = stack[-1]
            if state[v] == 0:
                state[v] = 1
                stack.extend(u for u in inputs[v] if state[u] == 0)
                continue
            stack.pop()
            if state[v] == 1:
                distances[v] = max(
                    (distances[u] + 1 for u in inputs[v] if state[u] == 2), default=0
                )
                state[v], after[v] = 2, finished
                finished += 1
    return distances, after


def _ordered(inputs: Inputs, layers: Sequence[int]) -> list[list[int]]:
    """Nodes by layer, each near what it is joined to: the mean place of its neighbours, swept down
    and up (barycentres, as Sugiyama, Tagawa and Toda have them)."""
    members: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for v, number in enumerate(layers):
        members[number].append(v)
    readers: list[list[int]] = [[] for _ in inputs]
    for v, read in enumerate(inputs):
        for u in read:
            readers[u].append(v)
    place_of = [0.0] * len(inputs)

    def settle(layer: list[int]) -> None:
        for position, v in enumerate(layer):
            place_of[v] = position - (len(layer) - 1) / 2

    def mean(joined: Sequence[int], v: int) -> float:
        return sum(place_of[u] for u in joined) / len(joined) if joined else place_of[v]

    for layer in members:
        settle(layer)
    for sweep in range(2 * SWEEPS):
        joined = inputs if sweep % 2 == 0 else readers
        for layer in members[:: 1 if sweep % 2 == 0 else -1]:
            keys = {v: mean(joined[v], v) for v in layer}
            layer.sort(key=keys.__getitem__)
            settle(layer)
    return members


def _rows(members: Sequence[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Layers cut into rows of at most MOST_ABREAST, neighbours kept together, and the numbers of
    the rows at which layers begin."""
    rows: list[list[int]] = []
    starts = []
    for layer in members:
        starts.append(len(rows))
        count = math.ceil(len(layer) / MOST_ABREAST)
        rows += [layer[row::count] for row in range(count)]
    return rows, starts


def _columns(widths: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of rows, one for each column of the paper, so that all is about ASPECT times as wide
    as high. A column ends with a layer where one ends soon enough."""
    if not widths:
        return []
    mean = sum(widths) / len(widths)
    wide = max(widths) + 1
    columns = max(1, math.sqrt(ASPECT * len(widths) * STEP_Y / ((mean + wide) / 2 * STEP_X)))
    high = max(4, math.ceil(len(widths) / columns))
    highest = high + math.ceil(high / 12)
    beginnings = set(starts)
    ranges: list[tuple[int, int]] = []
    first = 0
    for row in range(1, len(widths)):
        full = row - first >= high and row in beginnings
        if full or row - first >= highest:
            ranges.append((first, row))
            first = row
    return [*ranges, (first, len(widths))]
