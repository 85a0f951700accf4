"""The report page: every node coloured or with its reason, nothing from the graph taken as HTML."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from stitchcore.artifact import report as reports
from stitchcore.artifact.report import Report, ReportKernel, ReportNode

NODES = (
    ReportNode("x", "parameter"),
    ReportNode("a<b>", "add", 0, inputs=(0,)),
    ReportNode("dot", "dot", reason="library_call", inputs=(1,)),
    ReportNode("c", "multiply", 1, inputs=(2, 1)),
)
REPORT = Report(
    "a <title>",
    "cpu-x86-64-v3",
    NODES,
    (ReportKernel("k0", 3, 1000, 5000, 1, "kernel k0 {}"), ReportKernel("k1", 1)),
    kernels_before=3,
    kernels_after=2,
    bytes_before=2000,
    bytes_after=1000,
    bytes_saveable=1250,
)


def test_every_node_is_drawn_with_its_kernel_or_reason() -> None:
    page = reports.html(REPORT)
    assert page.count("<rect") == len(NODES)
    assert page.count(f'fill="{reports.colour(0)}"') == 1
    assert "library_call" in page
    assert "80.0% of what could be saved" in page


def test_names_are_text() -> None:
    page = reports.html(REPORT)
    assert "a&lt;b&gt;" in page
    assert "<title>a <title>" not in page
    assert "<b>" not in page


def test_json_round_trip() -> None:
    assert reports.decode(reports.encode(REPORT)) == REPORT


def test_neighbouring_kernels_have_different_colours() -> None:
    colours = [reports.colour(number) for number in range(48)]
    assert len(set(colours)) == 48
    hues = [int(re.findall(r"\d+", colour)[0]) for colour in colours]
    gaps = [abs(a - b) for a, b in itertools.pairwise(hues)]
    assert all(min(gap, 360 - gap) > 90 for gap in gaps)


@given(st.lists(st.lists(st.integers(0, 19), max_size=4), min_size=20, max_size=20))
def test_levels_put_operands_above(inputs: list[list[int]]) -> None:
    """Any graph ends; a graph without loops is ordered."""
    cyclic = [ReportNode(str(v), "op", inputs=tuple(u)) for v, u in enumerate(inputs)]
    assert len(reports.levels(cyclic)) == 20
    ordered = [
        ReportNode(str(v), "op", inputs=tuple(i for i in u if i < v)) for v, u in enumerate(inputs)
    ]
    levels = reports.levels(ordered)
    assert all(levels[u] < levels[v] for v, node in enumerate(ordered) for u in node.inputs)
