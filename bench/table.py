"""Fills benchmark tables of README and docs from bench/results: figures are written, never typed.

    python -m bench.table            rewrite the tables
    python -m bench.table --check    exit 1 when a table is not what the results say

A table stands between `<!-- results: NAME -->` and `<!-- end of results -->`, and is the text that
the benchmark of that name wrote to bench/results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCS = ("benchmarks.md", "service.md", "kubernetes.md", "faults.md")
PAGES = (ROOT / "README.md", *(ROOT / "docs" / name for name in DOCS))
BLOCK = re.compile(r"(<!-- results: ([a-z_]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
MISSING = "Not measured yet: `bench/results/{name}.md` is not there.\n"


def filled(page: str, results: Path) -> str:
    """`page` with every block replaced by the results of its name."""

    def block(match: re.Match[str]) -> str:
        path = results / f"{match[2]}.md"
        missing = MISSING.format(name=match[2])
        text = path.read_text(encoding="utf-8") if path.exists() else missing
        return match[1] + text.strip() + "\n" + match[3]

    return BLOCK.sub(block, page)


def main(arguments: Sequence[str]) -> int:
    """Rewrite or check the pages."""
    before = {page: page.read_text(encoding="utf-8") for page in PAGES}
    after = {page: filled(text, RESULTS) for page, text in before.items()}
    if arguments == ["--check"]:
        return int(before != after)
    for page, text in after.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
