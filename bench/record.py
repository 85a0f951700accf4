"""Where benchmarks write. A table or picture that a page shows is tracked in results/, with the
commit, machine and command that it is of, and so are the rows of a table that takes more hours than
one has at once. Raw figures and pictures that no page shows lie in results/raw/, which is not."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def raw(path: Path) -> Path:
    """The untracked place of a file of results."""
    return path.parent / "raw" / path.name


def write_figures(path: Path, figures: Any) -> None:
    """The figures as JSON at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def write_table(path: Path, text: str, command: str, machine: str | None = None) -> None:
    """`text` as the table at `path`, and beneath it the benchmark's `command`, the commit and the
    `machine`, this one unless it is said."""
    caption = f"`{command}`, commit {commit()}, {machine or processor()}."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text.rstrip()}\n\n{caption}\n", encoding="utf-8")


def commit() -> str:
    """What is checked out; with "-dirty" where a tracked file was changed since, other than by the
    benchmarks that write here."""
    commit = _git("describe", "--always", "--exclude=*") or "unknown: no history here"
    but_results = (":/", ":(top,exclude)bench/results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *but_results)
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=RESULTS, capture_output=True, text=True)
    return done.stdout.strip()


def processor() -> str:
    """The machine's processor, as Linux names it, and how many."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {len(models)} processors"
