"""Who may import whom, and what the job side may import at all."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INJECT = ROOT / "stitchcore" / "inject"
OF_THE_JOB = {"tensorflow", "google", "keras"}
"""What a job that imports TensorFlow has anyway: TensorFlow itself and its protobufs."""
OLDEST = (3, 9)
JOB_SIDE = sorted(INJECT.rglob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    """Top-level packages imported absolutely anywhere in `tree`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_the_job_side_needs_the_standard_library_only() -> None:
    standard = set(sys.stdlib_module_names) | OF_THE_JOB
    foreign = {}
    for path in JOB_SIDE:
        own = {"stitch_inject"} if path.parent.name == "bootstrap" else set()
        foreign[path.name] = imported(ast.parse(path.read_text(encoding="utf-8"))) - standard - own
    assert not {name: packages for name, packages in foreign.items() if packages}


def test_the_job_side_parses_as_its_oldest_python() -> None:
    for path in JOB_SIDE:
        ast.parse(path.read_text(encoding="utf-8"), path.name, feature_version=OLDEST)


def test_the_job_side_was_found() -> None:
    assert {"hook.py", "sitecustomize.py", "digest.py"} <= {path.name for path in JOB_SIDE}


def test_import_contracts_hold() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("lint-imports is missing: pip install import-linter")
    own = os.pathsep.join(str(ROOT / folder) for folder in (".", "operator", "worker"))
    environment = {**os.environ, "PYTHONPATH": own}
    done = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
