"""`tools/install.sh`: uv is told what pip was told, and where it cannot install, pip does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
if [ "$2 $3" = "pip --disable-pip-version-check" ]; then shift 3; set -- pip "$@"
else shift; fi
case "$*" in
"pip config get global.index-url") echo https://mirror.example/simple; exit 0;;
"pip config get"*) exit 1;;
uv*) echo "index $UV_DEFAULT_INDEX certificates $SSL_CERT_FILE links ${UV_FIND_LINKS:-}" >> told;;
esac
echo "$*" >> told
case "$*" in $FAILS) exit 2;; esac
"""
"""A Python that writes down what it is asked, and fails where FAILS says."""


@pytest.mark.parametrize(
    ("fails", "by_pip", "status"),
    [
        ("none", False, 0),
        ("uv\\ pip\\ install*", True, 0),
        ("pip\\ install\\ --quiet\\ uv*", True, 0),
        ("*install*", True, 2),
    ],
    ids=["installed by uv", "uv cannot install", "no uv", "neither can"],
)
def test_what_installs(tmp_path: Path, fails: str, by_pip: bool, status: int) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("$FAILS", fails))
    python.chmod(0o755)
    ran = subprocess.run(
        ["sh", ROOT / "tools" / "install.sh", python, "-e", ".[worker, test]"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PIP_CERT": "/own.crt", "PIP_FIND_LINKS": "/wheels"},
        capture_output=True,
        text=True,
    )
    told = (tmp_path / "told").read_text().splitlines()
    assert ran.returncode == status, ran.stderr
    assert ("pip install --quiet -e .[worker, test]" in told) == by_pip
    assert ("pip does" in ran.stderr) == by_pip
    by_uv = [line for line in told if line.startswith("uv pip install")]
    if by_uv:
        assert by_uv == [f"uv pip install --quiet --python {python} -e .[worker, test]"]
        assert "index https://mirror.example/simple certificates /own.crt links /wheels" in told
