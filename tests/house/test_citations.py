"""A page that a source names is in the repository, and so is the section."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "bench", "docs", "examples", "helm", "images", "operator", "stitchcore", "tests", "tools",
    "worker",
)  # fmt: skip
SUFFIXES = {
    ".c", ".cc", ".css", ".h", ".js", ".json", ".md", ".py", ".toml", ".tpl", ".txt", ".yaml",
}  # fmt: skip
UNSUFFIXED = {"Makefile", "Dockerfile"}
CITED = re.compile(
    r"(?<![\w/.:-])(?P<page>(?:[\w.-]+/)*[\w-]+\.md)\b"
    r"(?:#(?P<anchor>[\w-]+)|(?:,? sections?)? (?P<sections>\d+(?:(?:, | and |-)\d+)*)\b)?"
)
WRAPPED = re.compile(r"\s*\n\s*(?:#|//|\*)?\s*")
UNTRACKED = {"bench/results/plans.md", "gpu.md", "plans.md", "reach.md"}
"""What benchmarks write, and nobody has measured yet or no page shows."""


def citations(text: str) -> Iterator[tuple[str, str | None, list[str]]]:
    """(page, anchor, numbered sections) of each page that is named."""
    for found in CITED.finditer(WRAPPED.sub(" ", text)):
        yield found["page"], found["anchor"], re.findall(r"\d+", found["sections"] or "")


@functools.cache
def sections(page: Path) -> tuple[set[str], set[str]]:
    """Anchors as GitHub makes them from headings, and the numbers of those that have one."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w -]", "", heading) for heading in headings]
    anchors = {heading.strip().lower().replace(" ", "-") for heading in plain}
    return anchors, {number for h in headings for number in re.findall(r"^(\d+)\.", h)}


def missing(source: Path, text: str) -> list[str]:
    """What `text`, which stands in `source`, names and is not there."""
    absent = []
    for name, anchor, numbers in citations(text):
        folders = (ROOT, ROOT / "docs", ROOT / "bench" / "results", source.parent)
        page = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if page is None:
            absent += [] if name in UNTRACKED else [name]
            continue
        anchors, numbered = sections(page)
        absent += [f"{name}#{anchor}"] if anchor and anchor not in anchors else []
        absent += [f"{name} {number}" for number in numbers if number not in numbered]
    return absent


def test_what_is_not_there_is_found() -> None:
    text = """
    # see docs/none.md, docs/contracts.md sections 2 and 99, contracts.md
    # 98, docs/service.md#metrics, docs/service.md#weather and ../README.md
    """
    found = missing(ROOT / "stitchcore" / "cli.py", text)
    assert found == ["docs/none.md", "docs/contracts.md 99", "contracts.md 98",
                     "docs/service.md#weather"]  # fmt: skip


def test_what_sources_cite_is_there() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    paths.remove(Path(__file__))
    sources = [path for path in paths if path.suffix in SUFFIXES or path.name in UNSUFFIXED]
    absent = {path: missing(path, path.read_text(encoding="utf-8")) for path in sources}
    assert not {str(path): names for path, names in absent.items() if names}
