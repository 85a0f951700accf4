"""What a worker's process does without: libraries that TensorFlow imports for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcore.tensorflow.import_blocklist import NAMES
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
STARTED = """
import json, os, runpy, sys
from stitchcore.tensorflow.import_blocklist import NAMES
told = os.dup(1)
try:
    runpy.run_module(sys.argv.pop(), run_name="__main__")
except (SystemExit, ValueError):
    pass
left = [name for name in NAMES if sys.modules.get(name, 0) is None]
os.write(told, json.dumps(left).encode())
"""
LOADED = """
import json, sys
from stitchcore.tensorflow import import_blocklist
import_blocklist.leave_out()
import stitchcore.optimize.pipeline, stitchcore.tensorflow.lower
print(json.dumps([name for name in import_blocklist.NAMES if sys.modules.get(name) is not None]))
"""
INSTALLED = "open(__file__ + '.imported', 'w').close()"


def said(program: str, *arguments: str, first: str = "") -> list[str]:
    path = os.pathsep.join(filter(None, (first, str(ROOT), str(ROOT / "worker"))))
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [str(name) for name in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.parametrize("module", ["stitchcore.cli.optimize", "stitch_worker.child"])
def test_each_worker_leaves_them_out(module: str) -> None:
    """Called wrongly, a worker ends before it has imported anything."""
    assert said(STARTED, module) == list(NAMES)


@pytest.mark.slow
def test_tensorflow_and_the_compiler_load_without_them(tmp_path: Path) -> None:
    """Where they are installed."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(INSTALLED)
    assert said(LOADED, first=str(tmp_path)) == []
    assert list(tmp_path.glob("*.imported")) == []
