"""The release before this commit, and a way to parts of both that changes with them.

It is the last tag before this commit, or where there is none the commit before the newest revision
of the ledger, made into a folder by `git archive`.
"""

from __future__ import annotations

import io
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from bench import kills

ROOT = Path(__file__).resolve().parents[2]
REVISIONS = "operator/stitch_operator/gateway/revisions/versions"


def git(*arguments: str, root: Path = ROOT) -> bytes:
    """What git prints; nothing where it does not do it."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    return b"" if done.returncode else done.stdout


def release_before(root: Path = ROOT) -> str:
    """A commit of this history; fails where it has none."""
    tag = git("describe", "--tags", "--abbrev=0", "HEAD^", root=root)
    newest = git("log", "-1", "--diff-filter=A", "--format=%H^", "--", REVISIONS, root=root)
    found = (tag or newest).decode().strip()
    if not git("rev-parse", "--verify", "--quiet", f"{found}^{{commit}}", root=root):
        pytest.fail(f"{root} has neither a tag nor a history of {REVISIONS}: git fetch --unshallow")
    return found


@pytest.fixture
def before(tmp_path: Path) -> str:
    """The sources of the release before, as a PYTHONPATH."""
    made = git("archive", release_before(), "stitchcore", "operator", "worker")
    with tarfile.open(fileobj=io.BytesIO(made)) as files:
        files.extractall(tmp_path / "before", filter="data")
    return ":".join(str(tmp_path / "before" / part) for part in (".", "worker", "operator"))


class Balancer(kills.Relay):
    """As a Service of the cluster: what listens gets the connection."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        super().__init__(ports[0])

    def _joined(self, one: socket.socket) -> None:
        self._ports.append(self._ports.pop(0))
        for port in self._ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    self._target = port
                    break
        super()._joined(one)
