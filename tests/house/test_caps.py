"""Files stay short enough to read: caps on files and functions, in the product's own code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES, FUNCTION_LINES, COLUMNS = 450, 60, 100
SOURCES = sorted(
    path
    for folder in ("stitchcore", "operator", "worker", "bench", "examples", "tools")
    for path in (ROOT / folder).rglob("*.py")
)


def long_functions(source: str, limit: int) -> list[str]:
    """Names of functions in `source` that span more than `limit` lines."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > limit
    ]


def test_functions_are_counted_with_their_bodies() -> None:
    source = "def short():\n    return 1\n\ndef long():\n" + "    pass\n" * 60
    assert long_functions(source, 60) == ["long"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_caps(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    assert len(lines) <= FILE_LINES, f"{len(lines)} lines: split the file"
    wide = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
    assert not wide, f"lines wider than {COLUMNS}: {wide}"
    assert not long_functions(source, FUNCTION_LINES)


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.stat().st_size], ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_module_says_why_it_is_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
