"""Builds the docs as a site: the pages of the map and all that they link to, with MkDocs Material.

    python -m tools.site [--output FOLDER]      build/site/html without it

Pages and files lie in the site as they lie in the repository, so one link serves both. What is not
there, a page that no one can reach, a heading that is gone: MkDocs says it, and the build fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "mkdocs.yml"
MAP = Path("docs/README.md")
HOME = Path("README.md")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)#\s]+)[^)]*\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| ([a-z]+) \| (.*) \|$", re.MULTILINE)
ITEM = re.compile(r"(?:[*-]|\d+\.) ")
Entry = dict[str, "str | list[Entry]"]


def links(page: Path) -> Iterator[tuple[str, Path]]:
    """(text, path from the repository's top) of what a page links to."""
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for title, target in LINK.findall(text):
        yield title, (ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT)


def reached() -> set[Path]:
    """Pages of the map, and all files that these and further pages link to."""
    found: set[Path] = set()
    waiting = [HOME, MAP]
    while waiting:
        path = waiting.pop()
        if path in found or not (ROOT / path).is_file():
            continue  # MkDocs names the page that links to what is not there
        found.add(path)
        waiting += [target for _, target in links(path)] if path.suffix == ".md" else []
    return found


def navigation() -> list[Entry]:
    """The map as MkDocs takes it: a section for each row, a page for each link to one."""
    taken = {HOME, MAP}
    sections: list[Entry] = []
    for section, cells in ROW.findall((ROOT / MAP).read_text(encoding="utf-8")):
        pages: list[Entry] = []
        if not sections:  # one arrives at the first page of the first
            pages = [{"stitchcore": str(HOME)}, {"all pages": str(MAP)}]
        below: dict[str, list[Entry]] = {}
        for title, target in LINK.findall(cells):
            path = (ROOT / MAP).parent.joinpath(target).resolve().relative_to(ROOT)
            if path.suffix == ".md" and path not in taken:
                folder = path.parent.name if path.parent.parent == MAP.parent else ""
                (below.setdefault(folder, []) if folder else pages).append({title: str(path)})
                taken.add(path)
        sections.append({section: [*pages, *({name: some} for name, some in below.items())]})
    return sections


def apart(text: str) -> str:
    """The text with a blank line before each list: for GitHub one may follow a line of text, for
    MkDocs it is then a part of it."""
    lines: list[str] = []
    inside = fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        item = not fenced and ITEM.match(line) is not None
        if item and not inside and lines and lines[-1].strip():
            lines.append("")
        inside = item or (inside and (not line.strip() or line.startswith(" ")))
        lines.append(line)
    return "\n".join(lines) + "\n"


def staged(folder: Path) -> Path:
    """Copies what is in the site into `folder`; returns the settings that MkDocs is to read."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in reached():
        copy = folder / "pages" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy)
        if path.suffix == ".md":
            copy.write_text(apart(copy.read_text(encoding="utf-8")), encoding="utf-8")
    settings = folder / "mkdocs.yml"
    changes = {"INHERIT": str(SETTINGS), "docs_dir": "pages", "site_dir": "html"}
    settings.write_text(yaml.safe_dump({**changes, "nav": navigation()}, sort_keys=False))
    return settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    given = parser.parse_args()
    settings = staged(given.output.resolve())
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
    code = subprocess.run(command).returncode
    if not code:
        print(given.output / "html" / "index.html")
    return code


if __name__ == "__main__":
    sys.exit(main())
