"""Writes the reference pages: the commands, the environment variables and the reasons, from the
code that has them.

    python -m tools.reference             rewrite the pages
    python -m tools.reference --check     exit 1 when a page is not what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from stitchcore import options
from stitchcore.cli.main import COMMANDS, stitch
from stitchcore.errors import Reason
from stitchcore.inject import settings
from stitchcore.report.reasons import MEANINGS, MENDS

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = "Written by `python -m tools.reference`; do not edit."
WIDTH = 96


def commands() -> str:
    """Every command's own help."""
    rows = [f"| [{name}](#stitch-{name}) | {what} |" for name, what in COMMANDS.items()]
    parts = ["# Commands", WRITTEN, "\n".join(["| command | what it does |", "|---|---|", *rows])]
    for name in COMMANDS:
        command = stitch.get_command(click.Context(stitch), name)
        assert command is not None
        parent = click.Context(stitch, **stitch.context_settings)
        context = click.Context(command, parent, f"stitch {name}", max_content_width=WIDTH)
        context.terminal_width = WIDTH
        parts.append(f"## stitch {name}\n\n```\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def environment() -> str:
    """The tables of the two modules that read variables, as they stand there."""
    parts = [
        ("The command line and the worker", options, "stitchcore/options.py"),
        ("Inside the job", settings, "stitchcore/inject/settings.py"),
    ]
    sections = [
        f"## {title}\n\nRead in `{source}`.\n\n{table(module.__doc__ or '')}"
        for title, module, source in parts
    ]
    return "\n\n".join(["# Environment variables", WRITTEN, *sections]) + "\n"


def table(text: str) -> str:
    """The lines of a docstring's table; a row without a name goes on with the row before."""
    rows: list[str] = []
    for line in text.splitlines():
        if line.startswith("|   |"):
            rows[-1] = f"{rows[-1].removesuffix('|')}{line.removeprefix('|   |').lstrip()}"
        elif line.startswith("|"):
            rows.append(line)
    return "\n".join(rows)


def reasons() -> str:
    """The closed list, each with a heading that other pages and commands can link to."""
    introduction = (
        "Why something was left as it was: a closed list (`stitchcore/errors.py`). The same words "
        "stand in the summary of `stitch run`, in reports, metrics and events; `stitch explain "
        "CODE` says what stands here, `stitch explain` what your last job left, the most bytes "
        "first."
    )
    entries = [
        f"### {reason.value}\n\nBecause {MEANINGS[reason]}.\n\nWhat to do: {MENDS[reason]}."
        for reason in Reason
    ]
    return "\n\n".join(["# Reasons", WRITTEN, introduction, *entries]) + "\n"


def pages() -> Mapping[Path, str]:
    """Every page with what it must say."""
    made = {"commands": commands(), "environment": environment(), "reasons": reasons()}
    return {ROOT / "docs" / f"{name}.md": text for name, text in made.items()}


def stale() -> list[str]:
    """Pages that are not what the code says."""
    return [
        path.name
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        told = stale()
        print(f"not what the code says: {', '.join(told)}" if told else "as the code says")
        return 1 if told else 0
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
