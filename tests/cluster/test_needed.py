"""What a cluster takes is checked before anything is built: half an hour of building used to end
with a program that was not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("sh", "dirname", "awk", "echo")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH of a machine that has a shell, a user of its own, and a full disk."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in SHELL:
        (programs / name).symlink_to(str(shutil.which(name)))
    for name, said in (("id", "1000"), ("df", "head\nx 1 1 2097152 1% /")):
        (programs / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (programs / name).chmod(0o755)
    return programs


def checked(path: Path, *levels: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(ROOT / "tools" / "cluster.sh"), *levels]
    environment = {"PATH": str(path), "HOME": str(path.parent)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_all_that_is_missing_is_named_at_once(bare: Path) -> None:
    done = checked(bare, "api", "node")
    assert done.returncode == 1
    for word in ("runc", "iptables", "iproute2", "Go 1.26", "5 GiB", "root", "apt-get install"):
        assert word in done.stderr, word


def test_a_control_plane_needs_no_runtime_of_containers(bare: Path) -> None:
    done = checked(bare, "api")
    assert "Go 1.26" in done.stderr and "5 GiB" in done.stderr
    assert " runc" not in done.stderr and "needs root" not in done.stderr


def test_root_on_debian_gets_what_is_missing(bare: Path, tmp_path: Path) -> None:
    for name, said in (("id", "0"), ("df", "head\nx 1 1 99999999 1% /"), ("go", "")):
        (bare / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (bare / name).chmod(0o755)
    told = tmp_path / "told"
    (bare / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    (bare / "apt-get").chmod(0o755)
    assert checked(bare, "node").returncode == 0
    update, install = told.read_text().splitlines()
    assert update == "update -qq" and "runc iptables iproute2" in install


@pytest.mark.parametrize("target", ["demo-cluster", "cluster-build"])
def test_make_checks_first(target: str) -> None:
    """Before Kubernetes is built; the virtual environment is what every target needs."""
    command = ["make", "--dry-run", "--always-make", target, "LEVEL=node"]
    lines = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "MAKEFLAGS": ""}
    ).stdout.splitlines()
    found = [line for line in lines if "cluster" in line]
    assert "tools/cluster.sh node" in found[0], found
