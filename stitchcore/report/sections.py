"""The page's sections as HTML, each from a Page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import compress

from stitchcore.inject.speedup import speedup_text
from stitchcore.report import charts
from stitchcore.report.markup import Markup, bytes_text, join, saved_text, seconds_text, tag
from stitchcore.report.reasons import meaning
from stitchcore.report.schema import Report, ReportKernel, ReportRegion
from stitchcore.report.step_parts import bound_text
from stitchcore.report.view import Interval, Page, change, interval, measured, number

NONE = "–"
LEFT = "What was left to TensorFlow, and why"
NUMBER = "n"
SCHEMES = ("local", "regional", "global")
"""Class of a column of numbers."""


def header(page: Page) -> Markup:
    """Whose page it is, what was gained, kernels and bytes before and after."""
    headline, report = page.headline, page.report
    tone = {True: "gained", False: "lost", None: ""}[headline.gained]
    figure = tag(
        "div",
        tag(
            "p",
            tag("span", headline.value, class_=f"value {tone}".strip()),
            " ",
            headline.of,
            class_="of",
        ),
        tag("p", headline.how, class_="how"),
        class_="headline",
    )
    measured, rows = page.measured, []
    if measured is not None and measured.seconds_before and measured.seconds_after:
        both = (measured.seconds_before, measured.seconds_after)
        rows.append(_pair("A step", *both, seconds_text, measured.bounds))
    if report.kernels_before or report.kernels_after:
        kernels = (report.kernels_before, report.kernels_after)
        rows.append(_pair("Kernels a step", *kernels, "{:,}".format))
    if report.bytes_saveable:
        rows.append(_saved(report))
    elif report.kernels:
        label = "Bytes moved, memory-intensive part"
        rows.append(_pair(label, report.bytes_before, report.bytes_after, bytes_text))
    if measured is None and report.seconds_before and report.seconds_after:
        both = (number(report.seconds_before) or 0.0, number(report.seconds_after) or 0.0)
        rows.append(_pair("Its time, as estimated", *both, seconds_text))
    name = page.job.name if page.job is not None else report.title
    kind = f"job in namespace {page.job.namespace}" if page.job is not None else "stitch report"
    target = f"for {report.target}" if report.target else "no artifact"
    of = f"{kind} · {report.title} · {target}" if page.job else target
    title = tag("div", tag("h1", name), tag("p", of, class_="muted"), class_="title")
    beside = [tag("div", *rows, class_="pairs")] if rows else []
    return tag("header", title, tag("div", figure, *beside, class_="top"))


def _pair(
    label: str,
    before: float,
    after: float,
    write: Callable[[float], str],
    bounds: tuple[float, float] | None = None,
) -> Markup:
    share = change(after / before) if before > 0 else ""
    if write is seconds_text:  # a speed-up has an interval: the headline says it
        share = "" if bounds is None else "line: 95 %"
    description = f"{label}: {write(before)} before, {write(after)} after"
    if bounds is not None:
        description += f", 95 %: {write(bounds[0])} to {write(bounds[1])}"
    most = max(before, after, *(bounds or ()))
    return tag(
        "div",
        tag("p", tag("span", label, class_="muted"), tag("span", share, class_="share")),
        tag("p", tag("strong", write(before)), " → ", tag("strong", write(after)), class_="both"),
        charts.bars(before, after, most, description, bounds),
        class_="pair",
    )


def _saved(report: Report) -> Markup:
    saved, saveable = number(report.bytes_saved) or 0.0, number(report.bytes_saveable) or 0.0
    text = saved_text(saved, saveable)
    return tag(
        "div",
        tag("p", tag("span", "Bytes saved per step", class_="muted")),
        tag("p", tag("strong", text), class_="both"),
        charts.bars(saveable, saved, max(saveable, saved), f"Bytes saved per step: {text}"),
        class_="pair",
    )


def job(page: Page) -> Markup:
    """Every graph of the job: its A/B result, or why there is none."""
    if page.job is None:
        return Markup("")
    rows = []
    for graph in page.job.graphs:
        ratio = NONE
        if graph.ratio is not None and graph.low is not None and graph.high is not None:
            ratio = speedup_text(graph.ratio, graph.low, graph.high)
        state = graph.swap or graph.phase
        why = f"{graph.reason}: {meaning(graph.reason)}" if graph.reason else ""
        rows.append((graph.digest[:12], state, f"{graph.steps:,}", ratio, why))
    heads = ("graph", "state", "stitched steps>", "speed-up, 95 %>", "why")
    note = (
        "Blocks of original and stitched steps took turns in the job itself. Speed-up: the time of "
        "a whole step before over its time after; above 1 is faster."
    )
    return section("job", "What the job measured", tag("p", note), table(heads, rows))


def step_parts(page: Page) -> Markup:
    """Where the time of a step goes, where a job has recorded it."""
    told = page.measured.parts if page.measured is not None else ()
    if not told:
        return Markup("")
    stitched = all(part.after is not None for part in told)
    before, after = [part.before for part in told], [part.after or 0.0 for part in told]
    rows = [
        (
            join((charts.plain_swatch(number), " ", part.name)),
            *_part(part.before, sum(before)),
            *(_part(part.after or 0.0, sum(after)) if stitched else ()),
        )
        for number, part in enumerate(told)
    ]
    heads = ("part", "before>", "of the step>", *(("after>", "of the step>") if stitched else ()))
    both = [before, after] if stitched else [before]
    label = "Where the time of a step goes" + (", before (above) and after" if stitched else "")
    drawn = tag("figure", charts.stacked(both, label))
    most = bound_text(told)
    text = [tag("p", f"{most[:1].upper()}{most[1:]}.")] if most else []
    return section("time", label, drawn, table(heads, rows), *text)


def _part(seconds: float, whole: float) -> tuple[str, str]:
    return seconds_text(seconds), f"{seconds / whole if whole > 0 else 0.0:.0%}"


def cost(page: Page) -> Markup:
    """What the compilation cost, and how to have all this again."""
    told = page.measured
    if told is None:
        return Markup("")
    lines = [told.cost[:1].upper() + told.cost[1:] + "." if told.cost else ""]
    lines.append(f"On {told.machine}." if told.machine else "")
    shown = [tag("p", line) for line in lines if line]
    if told.command:
        shown.append(tag("p", "Again: ", tag("code", told.command)))
    return section("cost", "What it cost, and how to reproduce it", *shown)


def graph(page: Page) -> Markup:
    """The graph's stage and its panel, filled by the script; the table twin comes after."""
    count = len(page.report.nodes)
    keys = (
        "A click or Enter opens a group, Backspace closes it. Arrow keys walk along inputs and "
        "consumers, plus and minus zoom, 0 fits, Escape lets go. Drag moves, Ctrl + wheel zooms."
    )
    stage = tag(
        "div",
        tag("canvas", aria_hidden="true"),
        tag("p", keys, id="keys", class_="hint"),
        id="stage",
        tabindex=0,
        role="application",
        aria_label=f"Graph of {count:,} operations; the table of operations below has them too",
        aria_describedby="keys",
    )
    panel = tag("aside", id="panel", aria_label="Selection")
    return section(
        "graph",
        "What was fused",
        tag("p", f"{count:,} operations, in the script's name scopes. One colour and number is "
            "one kernel; a pile is a group, its stripe says which kernels hold what part of it; "
            "dashed: left as it was, with a reason; plain: no work of its own."),
        _tools(),
        tag("div", stage, panel, class_="split"),
        tag("p", id="said", role="status", class_="visually-hidden"),
        tag("noscript", tag("p", "The graph and the list of operations need JavaScript.")),
    )  # fmt: skip


def _tools() -> Markup:
    def button(name: str, label: str, text: str) -> Markup:
        return tag("button", text, type="button", id=name, aria_label=label, title=label)

    return tag(
        "div",
        tag("label", "Search", for_="search"),
        tag("input", id="search", type="search", placeholder="operation, opcode or reason",
            autocomplete="off", spellcheck="false"),
        tag("output", id="matches", for_="search"),
        tag("span", tag("label", "Groups ", for_="groups"),
            tag("select", tag("option", "name scopes", value="scopes"),
                tag("option", "kernels", value="kernels"), id="groups"), class_="whole"),
        button("open", "Open all groups", "Open all"),
        button("close", "Close all groups", "Close all"),
        tag("span", class_="gap"),
        button("closer", "Zoom in", "+"),
        button("wider", "Zoom out", "−"),
        button("fit", "Show all of the graph", "Fit"),
        class_="tools",
        role="search",
    )  # fmt: skip


def operations(page: Page) -> Markup:
    """The table twin of the graph: filled by the script, a page at a time."""
    heads = ("operation", "opcode", "kernel>", "why it was left as it was")
    options = [
        tag("option", text, value=value)
        for value, text in (("", "all"), ("kernel", "in kernels"), ("left", "left as they were"))
    ]
    tools = tag(
        "div",
        tag("label", "Show", for_="which"),
        tag("select", *options, id="which"),
        tag("span", id="range", role="status"),
        tag("button", "Back", type="button", id="back"),
        tag("button", "Next", type="button", id="next"),
        class_="tools",
    )
    return section("operations", "Operations", tools, table(heads, (), "list", tall=True))


def kernels(page: Page) -> Markup:
    """One row a launch."""
    most = max((k.bytes_before for k in page.kernels), default=0)
    heads = (
        *("#", "kernel", "instructions>", "phases>", "values", "bytes before, after>", ""),
        *("predicted>", "measured>", "on the device"),
    )
    order = sorted(range(len(page.kernels)), key=lambda k: (-page.kernels[k].bytes_saved, k))
    rows = [_kernel(page, position, most) for position in order]
    note = (
        "What saves most bytes comes first. "
        "Predicted and measured are of one call. Values: in registers (local), shared by the lanes "
        "of a group (regional), passed between phases by memory (global)."
    )
    return section("kernels", "Kernels", tag("p", note), table(heads, rows, tall=True))


def _kernel(page: Page, position: int, most: int) -> Sequence[str]:
    kernel = page.kernels[position]
    label = f"Show kernel {position} in the graph"
    name = tag("button", charts.swatch(position), f"K{position}", type="button",
               class_="kernel", data_kernel=position, aria_label=label)  # fmt: skip
    has_bytes = kernel.bytes_before or kernel.bytes_after
    moved = f"{bytes_text(kernel.bytes_before)} → {bytes_text(kernel.bytes_after)}"
    saved = f"{bytes_text(kernel.bytes_saved)} saved" if kernel.bytes_saved else NONE
    drawn = charts.bars(kernel.bytes_before, kernel.bytes_after, most, moved) if has_bytes else ""
    return (
        name,
        join((tag("span", page.contents[position]), " ", tag("code", kernel.name, class_="muted"))),
        f"{kernel.operations:,}",
        str(kernel.phases or NONE),
        tag("span", _schemes(kernel), class_="values") if kernel.schemes else "",
        moved if has_bytes else saved,
        drawn,
        _nanoseconds(kernel.estimate_ns),
        _nanoseconds(kernel.measured_ns),
        resources(kernel),
    )


def facts(kernel: ReportKernel) -> list[tuple[str, str]]:
    """What is told of one kernel beside its name, by label; "" where nothing is known."""
    has_bytes = kernel.bytes_before or kernel.bytes_after
    return [
        ("instructions", f"{kernel.operations:,}"),
        ("phases", str(kernel.phases or "")),
        ("values", _schemes(kernel)),
        ("bytes before", bytes_text(kernel.bytes_before) if has_bytes else ""),
        ("bytes after", bytes_text(kernel.bytes_after) if has_bytes else ""),
        ("bytes saved", bytes_text(kernel.bytes_saved)),
        ("predicted", _nanoseconds(kernel.estimate_ns)),
        ("measured", _nanoseconds(kernel.measured_ns).strip(NONE)),
        ("on the device", resources(kernel)),
    ]


def _schemes(kernel: ReportKernel) -> str:
    counts = [(kernel.schemes.get(scheme, 0), scheme) for scheme in SCHEMES]
    return ", ".join(f"{count:,} {scheme}" for count, scheme in counts if count)


def _nanoseconds(value: int) -> str:
    return seconds_text(value * 1e-9) if 0 < value < 10**18 else NONE


def resources(kernel: ReportKernel) -> str:
    """What a GPU's kernel needs of it, or why it has no binary."""
    if kernel.refused or not kernel.registers:
        return kernel.refused
    spilled = f", {kernel.spill_bytes} bytes spilled" if kernel.spill_bytes else ""
    predicted = f"{kernel.registers} ({kernel.registers_predicted} predicted) registers"
    return f"{predicted}{spilled}; {kernel.blocks} blocks a multiprocessor"


def prediction(page: Page) -> Markup:
    """Predicted against measured, or why there is nothing measured."""
    if not page.points:
        text = (
            "Nothing of this was timed. `stitch report MODULE --measure` times every kernel on "
            "this machine; a job's regions are timed by its worker."
        )
        return section("prediction", "Predicted against measured", tag("p", text))
    off = sorted(point.measured / point.predicted for point in page.points)
    middle = off[len(off) // 2]
    far = sum(not 0.5 <= ratio <= 2 for ratio in off)
    text = (
        f"{len(off)} {page.points_of}s were timed. On the diagonal prediction and measurement "
        f"agree; above it they took longer. Measured over predicted: {middle:.2f} in the middle, "
        f"{off[0]:.2f} to {off[-1]:.2f}; {far} are off by more than twice."
    )
    chart = tag("figure", charts.scatter(page.points, page.points_of))
    return section("prediction", "Predicted against measured", tag("p", text), chart)


def planners(page: Page) -> Markup:
    """All planners that were tried, by estimate."""
    report = page.report
    if not report.planners:
        return Markup("")
    rows = [
        (
            tag("strong", f"{planner.name} (taken)") if planner.chosen else planner.name,
            f"{planner.kernels:,}",
            seconds_text(number(planner.seconds) or 0.0),
            seconds_text(number(planner.took) or 0.0) if planner.took else NONE,
            f"{planner.gap:.2%}" if planner.gap is not None else NONE,
        )
        for planner in report.planners
    ]
    heads = ("planner", "kernels>", "estimated time>", "planning took>", "below the bound>")
    alone = "" if len(rows) > 1 else "Only this one was asked: `--planner auto` compares all three."
    text = [tag("p", line) for line in (report.bound, alone) if line]
    return section("planners", "Planners side by side", *text, table(heads, rows))


def reasons(page: Page) -> Markup:
    """What was left as it was, by reason, the most bytes first."""
    rows = [
        (
            join(
                (
                    tag("code", row.reason),
                    tag("div", row.meaning or "a reason that this version does not know"),
                    tag("div", row.mend, class_="muted"),
                    tag("div", "most: ", ", ".join(row.operations)) if row.operations else "",
                )
            ),
            f"{row.count:,}",
            bytes_text(row.bytes) if row.bytes else NONE,
        )
        for row in page.reasons
    ]
    if not rows:
        return section("reasons", LEFT, tag("p", "Nothing was left as it was."))
    heads = ("why, what to do, and most of them", "operations>", "bytes they move>")
    return section("reasons", LEFT, table(heads, rows))


def regions(page: Page) -> Markup:
    """What was cut out of a job's graph, and what its proof said."""
    if not page.report.regions:
        return Markup("")
    heads = ("region", "operations>", "kernels>", "bytes before, after>",
             "predicted>", "TensorFlow>", "stitched>", "XLA>",
             "speed-up of it, 95 %>")  # fmt: skip
    order = sorted(page.report.regions, key=lambda region: region.bytes_after - region.bytes_before)
    rows = [_region(region) for region in order]
    return section("regions", "Regions", table(heads, rows, tall=True))


def _region(region: ReportRegion) -> Sequence[str]:
    def text(seconds: float | None) -> str:
        return seconds_text(seconds) if seconds else NONE

    ratio = interval(region.proof.get("ratio"))
    before, after = measured(region, "framework"), measured(region, "stitched")
    if before is not None and ratio is not None:
        after = before * ratio[1]  # one figure: see the speed-up of a step in docs/glossary.md
    return (
        join((tag("div", region.name), tag("div", _proof(region), class_="muted"))),
        f"{region.operations:,}",
        f"{region.kernels:,}",
        f"{bytes_text(region.bytes_before)} → {bytes_text(region.bytes_after)}",
        seconds_text(number(region.seconds_after) or 0.0) if region.seconds_after else NONE,
        *map(text, (before, after, measured(region, "xla"))),
        _speedup(ratio) if ratio else NONE,
    )


def _proof(region: ReportRegion) -> str:
    """What became of it, and what its proof found."""
    names = {"worst_error": "worst error", "framework_error": "TensorFlow's"}
    errors = {name: number(region.proof.get(key)) for key, name in names.items()}
    parts = [
        "stitched" if region.stitched else "left",
        "" if region.proof.get("passed", True) else "not passed",
        *(f"{name} {error:.2g}" for name, error in errors.items() if error is not None),
        str(region.proof.get("note") or ""),
    ]
    return ", ".join(filter(None, parts))


def _speedup(ratio: Interval) -> str:
    """Of a proof's ratio, which is stitched over TensorFlow's."""
    low, middle, high = (1 / end if end else math.inf for end in reversed(ratio))
    return speedup_text(middle, low, high)


def rest(page: Page) -> Markup:
    """For who builds the compiler: further figures, loops left scalar, time by stage."""
    report = page.report
    parts = [
        ("Further figures", ("figure", "value"), list(report.figures.items())),
        (
            "Loops the compiler left scalar",
            ("loop", "why"),
            [loop.partition(": ")[::2] for loop in report.scalar_loops],
        ),
        (
            "Time by stage",
            ("stage", "took>"),
            [(name, seconds_text(number(s) or 0.0)) for name, s in report.seconds.items()],
        ),
    ]
    folded = [
        tag("details", tag("summary", f"{title} ({len(rows)})"), table(heads, rows))
        for title, heads, rows in parts
        if rows
    ]
    return section("rest", "How it was made", _again(report), *folded)


def _again(report: Report) -> Markup:
    """What to type for the same page."""
    of, _, name = report.title.partition(" ")
    if of != "graph":
        again = f"stitch report {report.title}"
        return tag("p", "Again: ", tag("code", again), f", for {report.target}.")
    return tag(
        "p",
        *(
            "Again: ",
            tag("code", "stitch run --fresh --wait -- COMMAND"),
            f", on {report.target}. ",
        ),
        *("As text: ", tag("code", f"stitch explain {name}"), "; what a word means: "),
        *(tag("code", "stitch explain CODE"), "."),
    )


def section(name: str, title: str, *children: str) -> Markup:
    """A section with its heading."""
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], identity: str = "", tall: bool = False
) -> Markup:
    """A table that scrolls within itself; heads that end in ">" are of numbers. A column in which
    no row says anything is left out."""
    rows = list(rows)
    said = [not rows or any(row[n] not in ("", NONE) for row in rows) for n in range(len(heads))]
    heads, rows = list(compress(heads, said)), [list(compress(row, said)) for row in rows]
    aligned = [NUMBER if head.endswith(">") else None for head in heads]
    top = tag("tr", *(
        tag("th", head.rstrip(">"), scope="col", class_=kind)
        for head, kind in zip(heads, aligned, strict=True)
    ))  # fmt: skip
    lines = [
        tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, aligned, strict=True)))
        for row in rows
    ]
    body = tag("table", tag("thead", top), tag("tbody", *lines, id=identity or None))
    label = ", ".join(head.rstrip(">") for head in heads if head)
    return tag("div", body, class_="scroll tall" if tall else "scroll", tabindex=0, role="region",
               aria_label=f"Table of {label}")  # fmt: skip


def everything(page: Page) -> Markup:
    """The page's body in the order of a reader's questions: did it help, where the time goes, what
    was fused, what was left and why, what it cost, how good the estimates were, how it was made."""
    told: tuple[Callable[[Page], Markup], ...] = (step_parts, job, cost)  # without an artifact
    if page.report.nodes:
        told = (step_parts, job, graph, kernels, reasons, cost, regions, prediction, planners,
                operations, rest)  # fmt: skip
    elif page.report.kernels:
        told = (step_parts, job, kernels, reasons, cost, regions, prediction, planners, rest)
    return join((header(page), tag("main", *(write(page) for write in told))))
