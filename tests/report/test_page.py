"""The page as text: what it says, that nothing from a graph becomes HTML, and that any report,
however broken, is drawn."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.errors import Reason
from stitchcore.report import charts, markup, render, sections, view
from stitchcore.report import schema as reports
from stitchcore.report.job import Job, Measured
from stitchcore.report.schema import Report, ReportKernel, ReportNode, ReportRegion
from stitchcore.report.step_parts import Part
from tests.report import samples


class Outline(HTMLParser):
    """Elements of a page, and the texts of those that hold text only."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.ids: list[str] = []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = tag
        self.ids += [value for key, value in attrs if key == "id" and value]
        self.texts.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        if self._open in self.texts:
            self.texts[self._open][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def told(page: str) -> dict:  # type: ignore[type-arg]
    """The data that the page's script reads."""
    return json.loads(Outline(page).texts["script"][0])  # type: ignore[no-any-return]


PAGE = render.html(samples.hostile(), samples.job())
OUTLINE = Outline(PAGE)


def test_no_text_of_a_report_becomes_an_element_or_a_handler() -> None:
    assert OUTLINE.tags.count("script") == 2, "the data and the page's own"
    assert not {"img", "iframe", "object", "base", "form"} & set(OUTLINE.tags)
    assert not [key for key, _ in OUTLINE.attributes if key.startswith("on") or key == "style"]
    assert "<img" not in PAGE
    assert told(PAGE)["names"][0] == samples.HOSTILE + "x", "and yet it is there, as text"
    assert samples.HOSTILE in "".join(OUTLINE.texts["h1"])


def test_the_page_asks_for_nothing() -> None:
    asking = [
        (key, value)
        for key, value in OUTLINE.attributes
        if key in ("src", "href", "action", "srcset", "data", "poster")
    ]
    assert asking == [("href", "#graph")]
    style, script = render._assets()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", style + script)
    assert "innerHTML" not in script
    assert "localStorage" not in script


def test_the_policy_names_the_hashes_of_what_stands_in_the_page() -> None:
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', PAGE)
    policy = policy.replace("&#x27;", "'")
    for name, text in (
        ("style", OUTLINE.texts["style"][0]),
        ("script", OUTLINE.texts["script"][1]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_ids_stand_once_and_labels_name_them() -> None:
    assert len(OUTLINE.ids) == len(set(OUTLINE.ids))
    naming = {"for", "aria-labelledby", "aria-describedby"}
    named = {value for key, value in OUTLINE.attributes if key in naming}
    assert named <= set(OUTLINE.ids)


def test_a_jobs_page_says_the_net_first() -> None:
    assert OUTLINE.texts["h1"] == [samples.HOSTILE]
    assert "+95.0" in PAGE, "120 saved, 5 lost, 20 spent"
    assert "interval of the net: 70.0 to 120.0" in PAGE, "90 to 140, less what was spent"
    assert "1.250 [1.200, 1.310]" in PAGE


def test_a_job_that_saved_less_than_it_cost_says_so() -> None:
    made = view.view(samples.hostile(), Job("a", "n", "h100", 1.0, 2.0, 3.0, -4.0, 2.0))
    assert (made.headline.value, made.headline.gained) == ("−4.0", False)
    assert made.headline.of == "H100 seconds saved, net"
    nothing = view.view(samples.hostile(), Job("a", "n", "cpu"))
    assert nothing.headline.gained is None


def test_regions_that_were_timed_come_before_estimates() -> None:
    """(0.4 x 3 + 0.8 x 1) / 4 = 0.5; low and high alike."""

    def region(key: str, ratio: list[float], framework: float, stitched: bool) -> ReportRegion:
        proof = {"ratio": ratio, "seconds": {"framework": framework, "stitched": 1e-3}}
        return ReportRegion(key, key, 3, stitched, proof=proof, seconds_after=1e-3)

    regions = (
        region("a", [0.3, 0.4, 0.5], 3e-3, True),
        region("b", [0.7, 0.8, 0.9], 1e-3, True),
        region("c", [3.0, 4.0, 5.0], 9.0, False),
    )
    report = Report("r", "cpu", regions=regions, seconds_before=1.0, seconds_after=0.1)
    headline = view.view(report).headline
    assert headline.value == "2.000", "one over 0.5; its bounds one over 0.6 and 0.4"
    assert headline.of == "speed-up of the timed regions [1.667, 2.500]"
    assert headline.gained
    wide = msgspec.structs.replace(report, regions=(region("a", [0.9, 0.95, 1.1], 1e-3, True),))
    assert view.view(wide).headline.gained is None, "an interval around 1 is neither"
    slow = msgspec.structs.replace(report, regions=(region("a", [1.1, 1.2, 1.3], 1e-3, True),))
    assert view.view(slow).headline.gained is False


def test_an_estimate_says_that_it_is_one() -> None:
    report = Report("r", "cpu", kernels=(ReportKernel("k", 2),), seconds_before=2.0,
                    seconds_after=0.5)  # fmt: skip
    headline = view.view(report).headline
    assert (headline.value, headline.gained) == ("4.000", True)
    assert "nothing was timed" in headline.how
    assert view.view(Report("r", "cpu")).headline.how.startswith("Nothing was stitched")


def measured(**fields: object) -> Measured:
    parts = (Part("matrix work", 6e-3, 6e-3), Part("memory-intensive work", 4e-3, 2e-3))
    told = Measured("10 ms → 8 ms", 10e-3, 8e-3, (1.25, 1.2, 1.3), parts, "compiled in 6 s",
                    "stitch run -- python <b>", "a <machine>")  # fmt: skip
    return dataclasses.replace(told, **fields)  # type: ignore[arg-type]


def test_a_page_of_a_jobs_step_says_what_the_job_measured() -> None:
    """In the order of a reader's questions, and no second figure of the same."""
    page = render.html(samples.hostile(), measured=measured())
    assert "speed-up of the whole step [1.200, 1.300]" in page
    assert "speed-up of the timed regions" not in page
    order = [page.index(f'id="{name}"') for name in ("time", "graph", "kernels", "reasons", "cost")]
    assert order == sorted(order)
    assert "A speed-up of 1.667 at most" in page, "10 ms less 4"
    assert "&lt;machine&gt;" in page and "python &lt;b&gt;" in page
    assert "60%" in page and "75%" in page, "6 of 10 ms, 6 of 8"
    alone = tuple(dataclasses.replace(part, after=None) for part in measured().parts)
    assert "and after" not in Outline(render.html(samples.hostile(), measured=measured(
        parts=alone))).texts["h2"][0]  # fmt: skip


def test_the_bar_of_a_step_is_its_speed_up_with_its_interval() -> None:
    """What a reader measures on the bar is the figure beside it."""
    page = render.html(Report("r", "cpu"), measured=measured(seconds_after=10e-3 / 1.25))
    bars = page[page.index('aria-label="A step') - 600 :]
    found = dict(re.findall(r'class="(bar-\w+)"[^>]*? width="([\d.]+)"', bars))
    assert float(found["bar-before"]) / float(found["bar-after"]) == pytest.approx(1.25)
    [(low, across)] = re.findall(r'bar-bounds"[^>]*? x="([\d.]+)" width="([\d.]+)"', page)
    ends = (float(low), float(low) + float(across))
    assert ends == pytest.approx((100 / 1.3, 100 / 1.2), abs=0.02)
    assert "A step: 10 ms before, 8 ms after, 95 %: 7.69 ms to 8.33 ms" in page


@pytest.mark.parametrize(
    ("speedup", "says"),
    [((1.25, 1.2, 1.3), "It helps: "), ((0.9, 0.8, 0.95), "It is slower: "),
     ((1.25, 0.9, 1.6), "Not shown to help: ")],
)  # fmt: skip
def test_the_first_sentence_says_whether_it_helped(
    speedup: tuple[float, float, float], says: str
) -> None:
    told = measured(speedup=speedup)
    assert view.view(samples.hostile(), measured=told).headline.how.startswith(says)


def test_a_jobs_page_has_no_estimate_beside_what_was_measured() -> None:
    """One of 88.5 ms stood beside a step of 47.3."""
    report = Report("r", "cpu", seconds_before=88.5e-3, seconds_after=6.7e-3)
    assert "as estimated" in render.html(report)
    assert "as estimated" not in render.html(report, measured=measured())


def test_a_regions_time_after_is_its_speed_ups() -> None:
    proof = {"seconds": {"framework": 6e-3, "stitched": 1e-3}, "ratio": [0.25, 0.5, 1.0]}
    report = Report("r", "cpu", regions=(ReportRegion("k", "k", 3, True, proof=proof),))
    row = sections.regions(view.view(report))
    assert ">6 ms<" in row and ">3 ms<" in row and ">1 ms<" not in row
    assert "2.000 [1.000, 4.000]" in row


def test_a_page_without_a_speed_up_says_why() -> None:
    why = "Runs as it was, slower"
    made = view.view(samples.hostile(), measured=measured(speedup=None, verdict=why))
    assert (made.headline.value, made.headline.how) == ("–", why)
    assert 'id="time"' not in render.html(samples.hostile()), "no job, no parts"


def test_a_page_of_a_step_without_an_artifact_says_why() -> None:
    """And where its time goes, which may be the answer."""
    why = "Runs as it was, memory: a step would hold more memory"
    told = measured(speedup=None, verdict=why, seconds_after=0.0)
    page = render.html(Report("graph d", ""), measured=told)
    assert why in page and "no artifact" in page and 'id="time"' in page
    assert Outline(page).tags.count("canvas") == 0 and "Nothing was left" not in page


def test_parts_are_drawn_on_one_scale() -> None:
    drawn = charts.stacked([[6.0, 4.0], [6.0, 2.0]], "x")
    assert re.findall(r'x="([0-9.]+)" y="\d+" width="([0-9.]+)"', drawn) == [
        ("0.000", "60.000"), ("60.000", "40.000"), ("0.000", "60.000"), ("60.000", "20.000"),
    ]  # fmt: skip


def test_a_change_that_rounds_to_nothing_has_no_minus() -> None:
    changes = [view.change(ratio) for ratio in (0.997, 1.0, 0.9, 1.1, 2.0)]
    assert changes == ["+0 %", "+0 %", "−10 %", "+10 %", "+100 %"]


def test_reasons_come_with_counts_bytes_and_words() -> None:
    rows = {row.reason: row for row in view.view(samples.hostile()).reasons}
    assert (rows["library_call"].count, rows["library_call"].bytes) == (1, 4096)
    assert "a library does it best" in rows["library_call"].meaning
    assert rows[samples.HOSTILE].meaning == ""


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_explained(reason: Reason) -> None:
    report = Report("r", "cpu", (ReportNode("a", "Add", reason=reason.value),))
    [row] = view.view(report).reasons
    assert row.meaning


def test_kernels_are_told_apart_by_colour_pattern_and_number() -> None:
    marks = [charts.swatch(number) for number in range(charts.COLOURS * charts.PATTERNS)]
    assert len(set(marks)) == len(marks)
    assert len({mark.partition("url")[0] for mark in marks[: charts.COLOURS]}) == charts.COLOURS


def test_every_kernel_is_in_the_table_and_in_the_data() -> None:
    data = told(PAGE)
    assert data["kernel"] == [-1, 0, -1, 1, -1]
    assert [kernel["name"] for kernel in data["kernels"]] == [samples.HOSTILE + "k0", "k1"]
    assert PAGE.count('class="kernel"') == 2
    assert data["sources"]["k1"] == "void k1(void) {}"
    facts = dict(data["kernels"][1]["facts"])
    assert facts["values"] == "2 regional, 1 global"
    assert (facts["predicted"], facts["measured"]) == ("700 ns", "650 ns")


def test_points_lie_on_logarithmic_axes() -> None:
    points = [view.Point("on", 1e-5, 1e-5), view.Point("above", 1e-6, 1e-4)]
    drawn = charts.scatter(points, "kernel")
    spots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)
    (x1, y1), (x2, y2) = [(float(x), float(y)) for x, y in spots]
    side, left, top = charts.SIDE, charts.LEFT, charts.TOP
    assert (x1, y1) == (left + side / 2, top + side / 2)
    assert (x2, y2) == (left, top)
    for tick in ("1 µs", "10 µs", "100 µs"):
        assert drawn.count(f">{tick}</text>") == 2


def test_bars_share_their_scale() -> None:
    assert re.findall(r'width="([\d.]+)"', charts.bars(50, 25, 200, "x")) == ["25.00", "12.50"]
    assert 'aria-label="&lt;b&gt;"' in charts.bars(0, 0, 0, "<b>")


def test_text_is_escaped_unless_it_is_markup() -> None:
    inner = markup.tag("b", "<i>")
    assert markup.tag("p", inner, "&", title='"') == '<p title="&quot;"><b>&lt;i&gt;</b>&amp;</p>'
    assert markup.tag("p", hidden=True, id=None) == "<p hidden></p>"


# ---- any report ----------------------------------------------------------------------------------
TEXT = st.text(max_size=12)
NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-3, 40)
REALS = st.floats(width=64) | st.sampled_from([0.0, 1e-3, 5e300])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | REALS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NODES = st.builds(ReportNode, TEXT, TEXT, NUMBERS, TEXT, TEXT,
                  st.lists(NUMBERS, max_size=3).map(tuple), TEXT, bytes=NUMBERS)  # fmt: skip
KERNELS = st.builds(ReportKernel, TEXT, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXT, NUMBERS,
                    bytes_before=NUMBERS, bytes_after=NUMBERS, measured_ns=NUMBERS,
                    schemes=st.dictionaries(TEXT, NUMBERS, max_size=2))  # fmt: skip
PROOFS = st.fixed_dictionaries(
    {}, optional={"ratio": ANYTHING | st.lists(REALS, min_size=3, max_size=3),
                  "seconds": ANYTHING | st.dictionaries(TEXT, ANYTHING, max_size=2),
                  "note": ANYTHING})  # fmt: skip
REGIONS = st.builds(ReportRegion, TEXT, TEXT, NUMBERS, st.booleans(), NUMBERS, NUMBERS, NUMBERS,
                    PROOFS, NUMBERS, seconds_before=REALS, seconds_after=REALS)  # fmt: skip
REPORTS = st.builds(
    Report, TEXT, TEXT, st.lists(NODES, max_size=5).map(tuple),
    st.lists(KERNELS, max_size=3).map(tuple), st.dictionaries(TEXT, NUMBERS, max_size=2),
    NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, REALS, REALS,
    st.dictionaries(TEXT, REALS, max_size=2), st.dictionaries(TEXT, TEXT, max_size=2),
    st.lists(REGIONS, max_size=3).map(tuple), st.lists(TEXT, max_size=2).map(tuple),
    bytes_saved=NUMBERS,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(REPORTS)
def test_any_report_is_drawn(report: Report) -> None:
    page = render.html(report)
    outline = Outline(page)
    assert outline.tags.count("script") == (2 if report.nodes else 0), "nothing to draw"
    assert not report.nodes or len(told(page)["names"]) == len(report.nodes)
    assert sections.header(view.view(report)) in page


def test_json_round_trip_and_an_older_report() -> None:
    report = samples.hostile()
    assert reports.decode(reports.encode(report)) == report
    older = {"title": "t", "target": "cpu", "kernels": [{"name": "k", "operations": 2}]}
    assert "k" in render.html(reports.decode(json.dumps(older).encode()))


def test_sources_beyond_the_limit_are_left_out_whole() -> None:
    assert reports.within_limit({"a": "xx", "b": "yyy", "c": "z"}, 4) == {"a": "xx"}


def test_edges_to_nowhere_and_kernels_that_are_none_are_left_out() -> None:
    nodes = (ReportNode("a", "Add", 7, inputs=(0, -1, 1, 2, 1)), ReportNode("b", "Add", -5))
    made = view.view(Report("r", "cpu", nodes, (ReportKernel("k", 1),)))
    assert made.inputs == ((1,), ())
    assert made.kernel_of == (-1, -1)
