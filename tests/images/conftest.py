"""The delivery program, built from the image's source for folders of the test's own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.catalogue import ROOT
from tests.waiting import RUN_SECONDS

STRICT = ("-std=gnu11", "-Os", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-static")


@dataclass(frozen=True)
class Delivery:
    """The program, what it copies from, and where the container's message would be."""

    program: Path
    source: Path
    message: Path

    def run(self, target: Path, *before: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Into `target`; `before` are words in front of the command."""
        command = [*before, str(self.program), str(target)]
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, **more)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def delivery() -> Iterator[Delivery]:
    """Open to other users, and on a disk: page cache counts there."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="stitch-deliver-") as folder:
        here = Path(folder)
        here.chmod(0o755)
        made = Delivery(here / "deliver", here / "runtime", here / "message")
        defined = [f'-DSOURCE="{made.source}"', f'-DMESSAGE="{made.message}"']
        source = ROOT / "images" / "runtime" / "deliver.c"
        subprocess.run(["cc", *STRICT, *defined, "-o", made.program, source], check=True)
        bootstrap = made.source / "inject" / "bootstrap"
        bootstrap.mkdir(parents=True)
        (bootstrap / "sitecustomize.py").write_text("print('here')\n")
        (made.source / "inject" / "lib").mkdir()
        (made.source / "inject" / "lib" / "plugin.so").write_bytes(bytes(range(256)) * 4096)
        yield made


@pytest.fixture
def target(delivery: Delivery) -> Path:
    """An empty folder that anybody may write to, as an emptyDir is."""
    made = delivery.program.parent / "target"
    made.mkdir()
    made.chmod(0o777)
    return made
