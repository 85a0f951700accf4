"""The demo ends with one line that says how it went; its environment holds what it needs alone."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = {"steps": 200, "status": "stitched", "reason": "", "detail": "", "seconds_before": 0.02,
        "seconds_after": 0.01, "speedup": [2.0, 1.9, 2.1]}  # fmt: skip


@pytest.fixture(scope="module")
def demo() -> Any:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def test_the_closing_line(demo: Any) -> None:
    slower = {**STEP, "status": "rolled_back", "reason": "slower", "detail": "speed-up 0.900"}
    assert "20.0 ms before and 10.0 ms stitched: speed-up 2.000 [1.900, 2.100]" in demo.closing(
        [{**slower, "steps": 3}, STEP]
    )
    assert "too few times" in demo.closing([{**STEP, "speedup": None}])
    assert demo.closing([slower]) == "demo: the step runs as it was: slower speed-up 0.900"
    assert "too short" not in demo.closing([]) and "nothing was stitched" in demo.closing([])
    assert not [line for line in (demo.closing([STEP]), demo.closing([])) if "\n" in line]


def test_the_demo_needs_one_environment_and_nothing_of_the_tests() -> None:
    recipe = subprocess.run(
        ["make", "-n", "-B", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"\.venv[a-z0-9-]*", recipe)) == {".venv-demo"}
    assert "system.sh python3.11 demo" in recipe
    script = (ROOT / "tools" / "system.sh").read_text()
    tests = script[script.index("!= demo ]") : script.index("\nfi\n")]
    for program in ("chromium", "rabbitmq", "buildah", "mmdebstrap", "prometheus", "redis-server"):
        assert program in tests and program not in script.split("!= demo ]")[0].split("set -eu")[1]
