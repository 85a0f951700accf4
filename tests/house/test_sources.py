"""What every source file keeps to: a docstring that says why it is there, lines that fit a screen.

How long a file or a function is, is no rule: it is as long as it reads well.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100  # of Python: ruff
MACRO_COLUMNS = 120  # device headers: a table of one-line macros and of constants reads across
SOURCES = sorted(
    path
    for folder in ("stitchcore", "operator", "worker", "images", "bench", "examples", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if path.stat().st_size
)
NATIVE = sorted(
    path
    for folder in ("stitchcore", "operator", "worker", "images", "bench", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".c", ".cc", ".h", ".cu", ".js", ".css")
)


def wide_lines(source: str, columns: int) -> list[int]:
    """Numbers of the lines of `source` that are wider than `columns`."""
    return [number for number, line in enumerate(source.splitlines(), 1) if len(line) > columns]


def test_wide_lines_are_found() -> None:
    assert wide_lines("x" * 100 + "\n" + "x" * 101, 100) == [2]


def test_columns_of_native_sources() -> None:
    wide = {
        str(path.relative_to(ROOT)): numbers
        for path in NATIVE
        if (numbers := wide_lines(path.read_text(encoding="utf-8"), columns_of(path)))
    }
    assert NATIVE
    assert not wide


def columns_of(path: Path) -> int:
    return MACRO_COLUMNS if path.parent.name == "include" else COLUMNS


@pytest.mark.slow
def test_every_module_says_why_it_is_there() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert SOURCES
    assert not silent
