"""The page as one file: HTML, style, script and data, with the policy that lets nothing else in."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from stitchcore.report import charts, sections
from stitchcore.report.job import Job, Measured
from stitchcore.report.markup import Markup, data, digest, join, tag
from stitchcore.report.schema import Report
from stitchcore.report.view import Page, view

FOLDER = Path(__file__).parent
SCRIPTS = ("layout.js", "graph.js", "page.js")


def html(report: Report, job: Job | None = None, measured: Measured | None = None) -> str:
    """The page of a report, and of the job that ran it."""
    return render(view(report, job, measured))


def render(page: Page) -> str:
    """`page` as HTML. Names in it come from users' graphs: all of them are text."""
    style, script = _assets()
    name = page.job.name if page.job is not None else page.report.title
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"stitch: {name}"),
        tag("style", Markup(style)),
    )
    skip = tag("a", "Skip to the graph", href="#graph", class_="skip")
    skip = skip if page.report.nodes else Markup("")
    body = tag(
        "body",
        skip,
        charts.patterns(),
        sections.everything(page),
        *(_drawn(page, script) if page.report.nodes else ()),
    )
    return join((Markup("<!doctype html>\n"), tag("html", head, body, lang="en"), "\n"))


def _drawn(page: Page, script: str) -> tuple[Markup, ...]:
    """What draws the graph."""
    return data("data", _data(page)), tag("script", Markup(script))


@lru_cache(maxsize=1)
def policy() -> str:
    """The Content-Security-Policy: this page's own style and script, and nothing from anywhere."""
    style, script = _assets()
    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


HEADERS_ONLY = "; frame-ancestors 'none'; sandbox allow-scripts"
"""What a policy may ask for in a header alone."""


@lru_cache(maxsize=1)
def _assets() -> tuple[str, str]:
    style, *scripts = (
        (FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", *SCRIPTS)
    )
    script = "\n".join(scripts)
    return style, f"(() => {{\n{script}}})();\n"


class _Strings:
    """Texts that many nodes share, each once."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._known = {"": 0}

    def __call__(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.all)
            self.all.append(text)
        return self._known[text]


def _data(page: Page) -> dict[str, Any]:
    """What the script draws: columns of nodes, kernels, texts by name of a kernel."""
    strings, report = _Strings(), page.report
    nodes = report.nodes
    known = {row.reason: row.meaning for row in page.reasons}
    return {
        "inputs": page.inputs,
        "names": [node.name for node in nodes],
        "written": [strings(node.written) for node in nodes],
        "ops": [strings(node.op) for node in nodes],
        "kernel": page.kernel_of,
        "reasons": [strings(node.reason) for node in nodes],
        "details": [strings(node.detail) for node in nodes],
        "strings": strings.all,
        "meanings": known,
        "kernels": [_kernel(number, page) for number in range(len(page.kernels))],
        "texts": {kernel.name: kernel.text for kernel in page.kernels if kernel.text},
        "sources": report.sources,
        "language": "CUDA" if report.target.startswith("sm_") else "C",
        "patterns": [charts.COLOURS, charts.PATTERNS],
    }


def _kernel(number: int, page: Page) -> dict[str, Any]:
    """A kernel's name, and the facts that its row in the table has, for the panel."""
    kernel = page.kernels[number]
    row = sections.facts(kernel)
    return {
        "name": kernel.name,
        "contents": page.contents[number],
        "facts": [[label, value] for label, value in row if value],
    }
