"""`stitch serve` as a user starts it: what it prints works, what dies is started again, and nothing
is left when it ends, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from bench.service import graph as training_step
from bench.service import renamed
from stitch_operator.gateway.digests import canonical
from stitch_operator.gateway.tls import trusting
from stitchcore.artifact.store import open_store
from stitchcore.cli.main import stitch
from stitchcore.report.schema import Report, encode
from tests import lean
from tests.operator.gateway import support
from tests.waiting import RUN_SECONDS, wait_for

Serving = tuple[subprocess.Popen[bytes], dict[str, Any]]
NAMES = ("STITCH_GATEWAY", "STITCH_TOKEN_FILE", "STITCH_CA", "STITCH_PUBLIC_KEYS")


@contextlib.contextmanager
def serve(
    folder: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    command = [sys.executable, "-m", "stitchcore.cli", "serve", "--json", "--folder", str(folder)]
    ports = ["--port", "0", "--metrics-port", "0", "--workers", "0"]
    environment = {**os.environ, "PYTHONPATH": ":".join(lean.SOURCES)}
    process = subprocess.Popen(
        [*command, *ports, *arguments], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(RUN_SECONDS)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def client(said: dict[str, Any]) -> httpx.Client:
    token = Path(said["STITCH_TOKEN_FILE"]).read_text().strip()
    return httpx.Client(
        base_url=said["STITCH_GATEWAY"],
        verify=trusting(Path(said["STITCH_CA"])),
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
    )


@pytest.mark.slow
def test_what_it_prints_is_what_a_client_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path) as (process, said):
        assert set(NAMES) <= set(said)
        assert oct(Path(said["STITCH_TOKEN_FILE"]).stat().st_mode & 0o777) == "0o600"
        with client(said) as http:
            answer = http.post("/v1/graphs", json=support.submission(support.graph()))
            assert answer.status_code == 202
            assert answer.json()["trust"]["public_keys"] == [said["STITCH_PUBLIC_KEYS"]]
        for name in NAMES:
            monkeypatch.setenv(name, said[name])
        digest, request = support.key_of(support.graph(), "local")
        for name in (request, digest):
            found = CliRunner().invoke(stitch, ["status", name, "--json"])
            told = json.loads(found.output)
            assert (found.exit_code, told["status"], told["key"]) == (3, "pending", request)
        found = CliRunner().invoke(stitch, ["status", "0" * 64])
        assert (found.exit_code, "handed in no graph" in found.output) == (2, True)
        fetched(said, tmp_path)
        pids = list(said["pids"].values())
        assert len(pids) == 3
        assert all(alive(pid) for pid in pids)
        for pid in pids:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"redis://:" not in words  # no password in the process list
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_SECONDS) == 0
        assert not any(alive(pid) for pid in pids)
    with serve(tmp_path) as (_, again):  # token and keys stay, the ledger too
        assert again["STITCH_PUBLIC_KEYS"] == said["STITCH_PUBLIC_KEYS"]
        with client(again) as http:
            assert http.get(f"/v1/graphs/{request}").status_code == 202


def fetched(said: dict[str, Any], folder: Path) -> None:
    """`stitch status --report` brings the page of an artifact, and of a job by its session."""
    _, request = support.key_of(support.graph(9), "local")
    body = support.submission(support.graph(9), session="one")
    with client(said) as http:
        assert http.post("/v1/graphs", json=body).status_code == 202
        report = encode(Report("the page", "cpu-x86-64-v3"))
        support.publish(open_store(str(folder / "store")), request, report=report)
        wait_for(lambda: http.post("/v1/graphs", json=body).is_success, "the artifact")
    for name, title in ((request, "the page"), ("one", "one")):
        page = folder / "page.html"
        done = CliRunner().invoke(stitch, ["status", name, "--report", str(page)])
        assert done.exit_code == 0, done.output
        assert f"<h1>{title}</h1>" in page.read_text(encoding="utf-8")
    done = CliRunner().invoke(stitch, ["status", "nobody", "--report", str(page)])
    assert (done.exit_code, "has no job 'nobody'" in done.output) == (2, True)


@pytest.mark.slow
def test_what_dies_is_started_again_and_nothing_outlives_it(tmp_path: Path) -> None:
    with serve(tmp_path) as (process, said):
        pids = said["pids"]
        os.kill(pids["gateway"], signal.SIGKILL)
        os.kill(pids["redis"], signal.SIGKILL)

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError), client(said) as http:
                return http.get("/readyz").status_code == 200
            return False

        wait_for(answers, "the gateway again")
        process.kill()  # no handler of ours runs
        process.wait()
        wait_for(lambda: not _of(tmp_path), "the end of all")


def _of(folder: Path) -> list[str]:
    """Processes whose command line names `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            if str(folder).encode() in words and int(path.parent.name) != os.getpid():
                found.append(words.decode(errors="replace"))
    return found


@pytest.mark.slow
def test_a_process_that_cannot_start_is_given_up_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database" * 100)
    command = [sys.executable, "-m", "stitchcore.cli", "serve", "--folder", str(tmp_path)]
    ports = ["--port", "0", "--metrics-port", "0", "--workers", "0"]
    environment = {**os.environ, "PYTHONPATH": ":".join(lean.SOURCES)}
    done = subprocess.run(
        [*command, *ports],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 1
    assert "not a database" in done.stderr
    assert "gateway.log" in done.stderr
    assert not _of(tmp_path)


def test_the_benchs_graphs_are_distinct_and_names_do_not_matter() -> None:
    pytest.importorskip("tensorflow", reason="make installs it: pip install tensorflow-cpu")
    one, other = training_step(0), training_step(1)
    digests = {
        canonical(renamed(made, name), [f"{name}/result"])
        for made in (one, other)
        for name in ("a", "b", "c")
    }
    assert len(digests) == 2
