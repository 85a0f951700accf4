"""`stitch` with workers that see the fake GPU: a worker's environment is nearly empty, so its
Python is a program that gives it one.

    python -m tests.gpu_rehearsal.stitch run --wait -- ...

The worker's part: `python -m tests.gpu_rehearsal.stitch worker -m MODULE ...`.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import tempfile
from pathlib import Path

WORKER = "stitchcore.cli.optimize"
ROOT = Path(__file__).resolve().parents[2]


def _worker(arguments: list[str]) -> None:
    module, *sys.argv[1:] = arguments
    os.environ["STITCH_DUMP"] = sys.argv[sys.argv.index("--dump") + 1]
    from tests.gpu_rehearsal import with_gpu

    with_gpu.install()
    sys.argv[0] = module
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _stitch() -> None:
    from stitchcore.cli.main import main

    given = {name: value for name, value in os.environ.items() if name.startswith("FAKE_GPU_")}
    settings = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    settings.append(f"PYTHONPATH={shlex.quote(str(ROOT))}")
    plain = f'[ "$2" = {WORKER} ] || exec {sys.executable} "$@"'
    worker = f'shift; exec {sys.executable} -m tests.gpu_rehearsal.stitch worker "$@"'
    lines = ("#!/bin/sh", plain, f"export {' '.join(settings)}", worker)
    with tempfile.TemporaryDirectory(prefix="gpu-rehearsal-") as folder:
        python = Path(folder) / "python"
        python.write_text("\n".join(lines) + "\n")
        python.chmod(0o755)
        sys.executable = str(python)
        main()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        _worker(sys.argv[2:])
    else:
        _stitch()
