"""What the pages tell users and contributors to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from stitchcore.cli.main import COMMANDS, stitch

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_make_targets_exist() -> None:
    made = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z0-9]*)\b(?=`|\s*#|\s*$)", TEXT, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= made


def test_commands_exist() -> None:
    named = set(re.findall(r"`(?:\.venv/bin/)?stitch ([a-z]+)", TEXT))
    assert "run" in named
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_options_exist(name: str) -> None:
    command = stitch.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {
        "--help",
        "-h",
    }
    used = re.findall(rf"\bstitch {name} ([^`\n]*)", TEXT)
    flags = {flag for line in used for flag in re.findall(r"(?<!\S)--[a-z-]+", _ours(line))}
    assert flags <= known
    assert "--json" in known


def _ours(line: str) -> str:
    """The part of a command line before the job's own command."""
    return line.partition(" -- ")[0]


def test_modules_named_with_python_m_exist() -> None:
    named = set(re.findall(r"python -m ([a-z_]+(?:\.[a-z_]+)+)", TEXT))
    for module in named:
        paths = [ROOT / root / Path(*module.split(".")) for root in (".", "operator", "worker")]
        files = [file for p in paths for file in (p.with_suffix(".py"), p / "__main__.py")]
        assert any(file.exists() for file in files), module


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    for flag in ("--help", "-h"):
        result = CliRunner().invoke(stitch, [name, flag])
        assert result.exit_code == 0
        assert "--json" in result.output
