"""Files stay short enough to read: caps on files and functions, in code and tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES, FUNCTION_LINES, COLUMNS = 450, 60, 100
MACRO_COLUMNS = 120  # device headers: a table of one-line macros and of constants reads across
SOURCES = sorted(
    path
    for folder in ("stitchcore", "operator", "worker", "images", "bench", "examples", "tools")
    for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NATIVE = sorted(
    path
    for folder in ("stitchcore", "operator", "worker", "images", "bench", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".c", ".cc", ".h", ".cu", ".js", ".css")
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


def too_large(source: str, columns: int = COLUMNS) -> list[str]:
    """What breaks the caps on a file's lines and columns."""
    lines = source.splitlines()
    wide = [number for number, line in enumerate(lines, 1) if len(line) > columns]
    long = [f"{len(lines)} lines: split the file"] if len(lines) > FILE_LINES else []
    return long + ([f"lines wider than {columns}: {wide}"] if wide else [])


def test_long_and_wide_files_are_found() -> None:
    assert too_large("x\n" * 450) == []
    assert too_large("x\n" * 451) == ["451 lines: split the file"]
    assert too_large("x" * 100 + "\n" + "x" * 101) == ["lines wider than 100: [2]"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_caps(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not too_large(source)
    assert not long_functions(source, FUNCTION_LINES)


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: str(path.relative_to(ROOT)))
def test_caps_of_native_sources(path: Path) -> None:
    columns = MACRO_COLUMNS if path.parent.name == "include" else COLUMNS
    assert not too_large(path.read_text(encoding="utf-8"), columns)


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.stat().st_size], ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_module_says_why_it_is_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_are_short_files(path: Path) -> None:
    """Their columns are ruff's matter: a literal that reads as one line may be marked there."""
    assert len(path.read_text().splitlines()) <= FILE_LINES
