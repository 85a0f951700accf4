"""The map of the docs names every page once, and every page can be reached from it."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_page_is_on_the_map_once() -> None:
    named = re.findall(r"\]\(([a-z0-9-]+\.md)\)", (DOCS / "README.md").read_text())
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert sorted(named) == sorted(pages)
