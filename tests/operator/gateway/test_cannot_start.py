"""A process that cannot start says what and where, why, and what to do, in two lines, with exit
code 2, no traceback and no password; `stitch serve` passes it on at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_operator.commands import processes as supervised
from stitch_operator.commands.processes import Command, GaveUp, Processes
from stitch_operator.gateway import __main__ as gateway
from stitch_operator.gateway import tls
from stitch_worker import __main__ as worker
from stitch_worker import collect, signer
from stitchcore.cli.main import stitch
from tests import lean
from tests.waiting import RUN_SECONDS, wait_for

Main = Callable[[list[str]], int]
GOOD = {
    "gateway": {
        "--store": "{}/store", "--broker": "redis://:pw-canary@127.0.0.1:1/0",
        "--ledger": "{}/ledger.sqlite", "--certificate": "{}/gateway.pem",
        "--certificate-key": "{}/gateway.key", "--token-file": "{}/token",
        "--port": "0", "--metrics-port": "0",
    },
    "worker": {"--store": "{}/store", "--broker": "amqp://u:pw-canary@127.0.0.1:1//"},
    "signer": {"--store": "{}/store", "--key": "{}/key"},
    "collect": {"--store": "{}/store"},
}  # fmt: skip
MAINS: dict[str, Main] = {
    "gateway": gateway.main, "worker": worker.main, "signer": signer.main, "collect": collect.main,
}  # fmt: skip
BAD = [
    ("gateway", {"--certificate": "{}/nope"}, "No such file"),
    ("gateway", {"--certificate-key": "{}/token"}, "--certificate-key"),
    ("gateway", {"--token-file": "{}/nope"}, "No such file"),
    ("gateway", {"--token-file": "{}/short"}, "5 characters"),
    ("gateway", {"--token-file": None}, "TokenReview"),
    ("gateway", {"--store": "nope://x"}, "nope"),
    ("gateway", {"--store": "/proc/nope"}, "No such file"),
    ("gateway", {"--broker": "nope://:pw-canary@x"}, "nope is none of redis"),
    ("gateway", {"--ledger": "{}/short"}, "not a database"),
    ("gateway", {"--ledger": "/proc/nope/ledger"}, "No such file"),
    ("gateway", {"--port": "{taken}"}, "already in use"),
    ("gateway", {"--port": "99999"}, "65535"),
    ("gateway", {"--host": "203.0.113.7"}, "203.0.113.7"),
    ("gateway", {"--metrics-port": "{taken}"}, "already in use"),
    ("worker", {"--store": "nope://x"}, "nope"),
    ("worker", {"--store": "/proc/nope"}, "No such file"),
    ("worker", {"--broker": "nope"}, "none of redis"),
    ("worker", {"--kernel-key": "/proc/nope/key"}, "No such file"),
    ("worker", {"--store": "memory://x"}, "--leases"),
    ("signer", {"--key": "/proc/nope/key"}, "No such file"),
    ("signer", {"--key": "{}/short"}, "not an Ed25519 key"),
    ("signer", {"--store": "/proc/nope"}, "No such file"),
    ("signer", {"--also-valid": "zz"}, "zz"),
    ("collect", {"--store": "nope://x"}, "nope"),
    ("collect", {"--store": "/proc/nope"}, "No such file"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    tls.make(folder, ["localhost"])
    (folder / "token").write_text("t" * 20)
    (folder / "short").write_text("short")
    return folder


@pytest.mark.parametrize(
    ("program", "change", "why"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_it_says_what_is_wrong_and_what_to_do(
    program: str, change: dict[str, Any], why: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        given = {**GOOD[program], **change}
        arguments = [
            text.replace("{taken}", taken).replace("{}", str(made))
            for name, value in given.items()
            if value is not None
            for text in (name, value)
        ]
        assert MAINS[program](arguments) == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if not line[:4].isdigit()]  # logged: with the time
    assert len(lines) == 2 and lines[0].startswith(f"{program}: "), said
    assert why in lines[0] and lines[1].startswith("  to mend it: "), said
    assert "pw-canary" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"STITCH_GATEWAY": ""}, "STITCH_GATEWAY is not set"),
        ({"STITCH_GATEWAY": "https://x:y:z"}, "y:z"),
        ({"STITCH_CA": "nope"}, "STITCH_CA=nope"),
        ({"STITCH_TOKEN_FILE": "nope"}, "STITCH_TOKEN_FILE=nope"),
        ({}, "Connection refused"),
    ],
    ids=lambda value: next(iter(value), "dead") if isinstance(value, dict) else "",
)
def test_status_without_a_gateway(change: dict[str, str], why: str, made: Path) -> None:
    environment = {
        "STITCH_GATEWAY": "https://127.0.0.1:1",
        "STITCH_CA": str(made / "ca.pem"),
        "STITCH_TOKEN_FILE": str(made / "token"),
    }
    done = CliRunner().invoke(stitch, ["status", "zzz"], env={**environment, **change})
    assert done.exit_code == 2 and why in done.output, done.output
    assert isinstance(done.exception, SystemExit) and len(done.output.splitlines()) <= 2


@pytest.mark.slow
def test_serve_passes_on_that_a_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "stitchcore.cli", "serve", "--folder", str(tmp_path)]
        done = subprocess.run(
            [*command, "--port", port, "--metrics-port", "0", "--workers", "0"],
            env={**os.environ, "PYTHONPATH": ":".join(lean.SOURCES)},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
    assert done.returncode == 1 and done.stdout == ""
    assert f"--port {port}: Address already in use; to mend it: another port" in done.stderr
    assert "gateway cannot start" in done.stderr, "at its first death"
    assert len(done.stderr.splitlines()) == 2


def test_what_could_start_once_is_started_again_until_it_is_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2 ends it at the first start only: later the disk may have been full."""
    monkeypatch.setattr(supervised, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(supervised, "MOST_STARTS", 3)
    program = "echo tried; test -e once && exit 2; touch once; kill -9 $$"
    environment = {"PATH": os.environ["PATH"]}
    made = Processes(tmp_path)
    monkeypatch.chdir(tmp_path)
    made.start(Command("one", ["sh", "-c", program], environment))
    started: list[str] = []

    def looked() -> bool:
        started.extend(made.look())
        return False

    try:
        with pytest.raises(GaveUp, match="ended 3 times"):
            wait_for(looked, "it is given up")
    finally:
        made.stop()
    assert started == ["one"] * 2
