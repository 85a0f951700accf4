"""A compile child that runs its attacker's code, under a worker as `stitch serve` starts it: it
knows where each credential lies, and reaches none. What it finds it would tell in its refusal."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_operator.commands import serve
from stitch_operator.commands.processes import Processes
from stitch_operator.gateway import tls
from stitchcore.cli.common import Output
from stitchcore.device.host import host
from tests.operator.gateway import support
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker.requests import python_path

CANARY = "CanaryCredential"
BUILD = Path(__file__).resolve().parents[2] / "build"
HUNTER = """
import json, os, socket, sys, time
while not os.path.exists("options.json"): time.sleep(0.01)
found = []
def look(path, name=None):
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file: data = file.read(2**20)
    except OSError:
        return
    data = data or b""
    if name or CANARY.encode() in data: found.append(name or path)
for number in filter(str.isdigit, os.listdir("/proc")):
    for file in ("environ", "cmdline"): look(f"/proc/{number}/{file}")
    for path in PLACES:
        if number != str(os.getpid()): look(f"/proc/{number}/root{path}", path)
    try:
        for one in os.listdir(f"/proc/{number}/fd"): look(f"/proc/{number}/fd/{one}")
    except OSError: pass
for path in PLACES: look(path, path)
for root in ROOTS:
    for at, _, files in os.walk(root):
        for one in files: look(os.path.join(at, one))
for address in SOCKETS:
    try:
        with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as one:
            one.settimeout(1); one.connect(tuple(address) if isinstance(address, list) else address)
            found.append(str(address))
    except OSError: pass
if CANARY in json.dumps(dict(os.environ)): found.append("environment")
look("request/meta.json", "the control")
detail = json.dumps(sorted(set(found)))[-400:]
json.dump({"reason": "slower", "subject": "hunt", "detail": detail}, open("refused.json", "w"))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is not below /tmp, where all would be hidden by that alone."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="credentials-", dir=BUILD) as made:
        yield Path(made)


@pytest.fixture
def home(place: Path) -> Path:
    """Where a user keeps credentials."""
    made = place / "home"
    for name in (".aws/credentials", ".kube/config", ".ssh/id_ed25519"):
        (made / name).parent.mkdir(parents=True)
        (made / name).write_text(CANARY)
    return made


@pytest.fixture
def served(
    own_mounts: None, tmp_path: Path, place: Path, home: Path
) -> Iterator[tuple[serve.Served, Processes]]:
    """What `stitch serve` starts, but for the worker's children; it has more in its environment
    than it should."""
    folder = place / "serve"
    made = serve._prepared(folder, "127.0.0.1", free_port(), free_port(), None)
    made = replace(made, broker=made.broker.replace("redis://:", f"redis://:{CANARY}"))
    processes = Processes(folder / "logs")
    more = {"HOME": str(home), "AWS_SECRET_ACCESS_KEY": CANARY, "PYTHONPATH": python_path()}
    crew = serve.Crew((Path(sys.executable),), 1, 0.0)
    for one in serve._commands(made, True, crew, Output(True)):
        arguments = list(one.arguments)
        if one.name == "worker-0":
            place = arguments.index("stitch_worker")
            arguments[place : place + 1] = ["tests.worker.hunted", str(tmp_path / "program")]
        processes.start(replace(one, arguments=arguments, environment={**one.environment, **more}))
    yield made, processes
    processes.stop()


@pytest.mark.slow
def test_arbitrary_code_in_a_compile_child_finds_no_credential(
    served: tuple[serve.Served, Processes], home: Path, tmp_path: Path
) -> None:
    said, processes = served
    folder = said.folder
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "socket"))
    unix.listen()
    names = ("token", "signing.key", "gateway.key", "ca.pem", "ledger.sqlite", "kernel-key/secret")
    places = [str(folder / name) for name in names] + [
        str(path) for path in home.rglob("*") if path.is_file()
    ]
    package = tmp_path / "program" / "stitch_worker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    redis = ["127.0.0.1", int(said.broker.rpartition(":")[2].partition("/")[0])]
    known = {
        "PLACES": places,
        "ROOTS": [str(folder), str(home), "/run", "/tmp"],
        "SOCKETS": [str(tmp_path / "socket"), redis, ["127.0.0.1", said.port]],
    }
    given = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    given += f'CANARY = "".join({list(CANARY)!r})\n'  # its own text does not count
    (package / "child.py").write_text(given + HUNTER)
    with httpx.Client(
        base_url=said.url,
        verify=tls.trusting(folder / "ca.pem"),
        headers={"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"},
        trust_env=False,
    ) as client:
        body = support.submission(support.graph(), target=host().target)

        def answer() -> dict[str, str] | None:
            try:
                response = client.post("/v1/graphs", json=body)
            except httpx.HTTPError:
                return None
            document = response.json()
            return document if document.get("reason") == "slower" else None

        try:
            told = wait_for(answer, "the hunter's answer")
        except AssertionError as late:
            tails = [processes.tail(name) for name in processes.pids()]
            raise AssertionError(tails) from late
    unix.close()
    for path in places:
        assert os.path.exists(path), "it is there"
    assert json.loads(told["detail"].removeprefix("hunt: ")) == ["the control"]
