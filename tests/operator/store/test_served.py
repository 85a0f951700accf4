"""The store over HTTPS, through the client that gateway, workers and signer use."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from stitch_operator.gateway import tls
from stitch_operator.store.files import Files
from stitch_worker.collect import collect
from stitch_worker.signer import Signer, run_once
from stitchcore.artifact import package, sign
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import SIGNATURE
from stitchcore.service import startup
from tests.operator.store.serving import Served, served
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker.handmade import artifact, key_for, submitted, uploaded


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


def refused(reason: Reason, text: str) -> pytest.RaisesContext[Refused]:
    return pytest.raises(Refused, match=f"{reason.value}.*{text}")


def test_files_come_back_as_they_went(server: Served) -> None:
    store = server.store("worker")
    data = os.urandom(3 * 2**20)
    store.write(data, "unsigned", "k", "kernels_00.so")
    store.write(b"", "unsigned", "k", "empty")
    assert store.read("unsigned", "k", "kernels_00.so") == data
    assert store.read("unsigned", "k", "empty") == b""
    assert store.list("unsigned") == ("k",)
    assert store.list("unsigned", "k") == ("empty", "kernels_00.so")
    sizes = [info["size"] for info in store.details("unsigned", "k").values()]
    assert sizes == [0, len(data)]
    assert store.exists("unsigned", "k") and not store.exists("unsigned", "other")
    assert store.list("unsigned", "other") == ()
    with refused(Reason.STORE_UNREADABLE, "unsigned/other/x"):
        store.read("unsigned", "other", "x")


def test_no_more_is_received_than_the_reader_may_hold(server: Served) -> None:
    """Whoever reads what a worker wrote: the gateway its answers, the signer its artifacts."""
    store, pieces = server.store("worker"), list[int]()
    store.write(bytes(64 * 2**20), "answers", "large.json")
    received = httpx.Response.iter_bytes

    def counted(self: httpx.Response) -> Iterator[bytes]:
        for piece in received(self):
            pieces.append(len(piece))
            yield piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.Response, "iter_bytes", counted)
        assert store.read("answers", "large.json", most=1000) == bytes(1001)
        assert store.read_answer("large") is None
    assert sum(pieces) < 4 * 2**20
    store.write(b"short", "answers", "short.json")
    assert store.read("answers", "short.json", most=1000) == b"short"


def test_a_connection_that_was_closed_meanwhile_is_made_anew(server: Served) -> None:
    """As a server does that ends idle ones, or starts again: seen when the next call is sent."""
    store = server.store("worker")
    store.write(b"1", "unsigned", "k", "a")
    present, failures = store.filesystem._client.stream, [httpx.RemoteProtocolError("closed")]

    def stream(*arguments: Any, **named: Any) -> AbstractContextManager[httpx.Response]:
        if failures:
            raise failures.pop()
        return present(*arguments, **named)

    store.filesystem._client.stream = stream
    assert store.read("unsigned", "k", "a") == b"1"
    assert failures == []


@pytest.mark.slow
def test_a_file_that_is_replaced_while_it_is_read_is_one_or_the_other(server: Served) -> None:
    """Answers are replaced all the time, and each has another size."""
    texts = [b"x" * size for size in (10, 300_000)]
    store, stop = server.store("worker"), threading.Event()
    store.write(texts[0], "answers", "d.json")

    def replace() -> None:
        while not stop.is_set():
            for text in texts:
                place = server.folder / "store" / "answers" / "d.json"
                place.with_suffix(".new").write_bytes(text)
                place.with_suffix(".new").rename(place)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(100):
            assert store.read("answers", "d.json") in texts
    finally:
        stop.set()
        thread.join()


WRITE = """
import os, sys
from stitchcore.service import startup
store = startup.store(sys.argv[1])
store.answer("d", {"status": "ready"})
"""


@pytest.mark.slow
def test_what_another_process_has_changed_is_seen(server: Served) -> None:
    store = server.store("gateway")
    assert store.read_answer("d") is None
    environment = {**os.environ, **server.environment("worker")}
    subprocess.run([sys.executable, "-c", WRITE, server.url], env=environment, check=True)
    assert (store.read_answer("d") or {})["status"] == "ready"


def test_a_forked_process_has_connections_of_its_own(server: Served) -> None:
    store = server.store("worker")
    store.write(b"1", "kernels", "scope", "k")
    if (child := os.fork()) == 0:
        mine = store.reopened()
        os._exit(0 if mine.read("kernels", "scope", "k") == b"1" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read("kernels", "scope", "k") == b"1"


def test_a_worker_cannot_replace_what_is_signed(server: Served) -> None:
    server.store("signer").write(b"signed", "artifacts", "k", "manifest.json")
    worker = server.store("worker")
    assert worker.read("artifacts", "k", "manifest.json") == b"signed"
    with refused(Reason.STORE_UNREADABLE, "403 a worker may not write artifacts/k/manifest.json"):
        worker.write(b"forged", "artifacts", "k", "manifest.json")
    with refused(Reason.STORE_UNREADABLE, "403 a worker may not delete"):
        worker.delete("artifacts", "k")
    with refused(Reason.STORE_UNREADABLE, "403 a gateway may not read unsigned"):
        server.store("gateway").list("unsigned")
    assert worker.read("artifacts", "k", "manifest.json") == b"signed"


def test_the_signer_publishes_what_a_worker_has_left(server: Served, tmp_path: Path) -> None:
    key = sign.load_or_create_key(tmp_path / "signing" / "key")
    submitted(server.store("gateway"))
    uploaded(server.store("worker"), artifact())
    public = sign.public_hex(key)
    assert run_once(Signer(server.store("signer"), key, (public,))) == {key_for(): "signed"}
    package.load(server.store("gateway"), key_for(), public)
    assert server.store("signer").list("unsigned") == ()


def test_it_is_collected_by_age(server: Served) -> None:
    server.store("signer").write(b"x", "artifacts", "k", SIGNATURE)
    store = server.store("collector")
    assert collect(store, time.time() + 86400, days=2.0) == ()
    (gone,) = collect(store, time.time() + 86400, days=0.5)
    assert (gone.parts, gone.size) == (("artifacts", "k"), 1)
    assert store.list("artifacts") == ()


def test_a_program_that_starts_sees_whether_the_store_takes_files(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(startup.CannotStart, match="STITCH_STORE_CA is not set"):
        startup.store(server.url)
    for name, value in server.environment("worker").items():
        monkeypatch.setenv(name, value)
    assert isinstance(startup.store(server.url), Store)
    assert not list((server.folder / "store").glob(".probe*"))
    unknown = server.folder / "unknown"
    monkeypatch.setenv("STITCH_STORE_TOKEN_FILE", str(unknown))
    with pytest.raises(startup.CannotStart, match="No such file"):
        startup.store(server.url)
    unknown.write_text("se\ncret")
    with pytest.raises(startup.CannotStart, match="holds no token") as caught:
        startup.store(server.url)
    assert "cret" not in str(caught.value)
    unknown.write_text("unknown")
    with pytest.raises(startup.CannotStart, match="401 the API server does not accept"):
        startup.store(server.url)


@pytest.mark.slow
def test_a_store_that_starts_later_is_waited_for(
    server: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in server.environment("worker").items():
        monkeypatch.setenv(name, value)
    port = free_port()
    url = f"stitch://localhost:{port}"
    with pytest.raises(startup.CannotStart, match=f"localhost:{port}: .*refused"):
        startup.store(url, 0.0)

    def proxied() -> None:
        time.sleep(1.5)
        there = ("127.0.0.1", urlsplit(server.url).port)
        with socket.create_server(("127.0.0.1", port)) as listening:
            here, _ = listening.accept()
            with here, socket.create_connection(there) as beyond:
                back = threading.Thread(target=pumped, args=(beyond, here))
                back.start()
                pumped(here, beyond)
                back.join()

    thread = threading.Thread(target=proxied, daemon=True)
    thread.start()
    opened = startup.store(url)
    assert isinstance(opened, Store)
    assert "is waited for" in capfd.readouterr().err


def pumped(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)


@pytest.mark.slow
def test_a_server_that_is_down_or_another_is_a_reason(server: Served, tmp_path: Path) -> None:
    store = server.store("worker")
    other = tmp_path / "other"
    other.mkdir()
    ca, _, _ = tls.make(other, ["localhost"])
    distrusting = open_store(server.url, {**server.access("worker"), "ca": str(ca)})
    with refused(Reason.STORE_UNREADABLE, "CERTIFICATE_VERIFY_FAILED"):
        distrusting.list("answers")
    server.end()
    with refused(Reason.STORE_UNREADABLE, "Connect"):
        store.list("answers")


@pytest.mark.slow
def test_a_new_authority_is_trusted_without_a_restart(server: Served) -> None:
    """The server's certificate and the file that says whom to trust are replaced under a client."""
    store = server.store("worker")
    store.write(b"1", "unsigned", "k", "a")
    trusted = server.folder / "ca.pem"
    right = trusted.read_bytes()
    other = server.folder / "other"
    other.mkdir()
    trusted.write_bytes(tls.make(other, ["localhost"])[0].read_bytes())
    with refused(Reason.STORE_UNREADABLE, "CERTIFICATE_VERIFY_FAILED"):
        store.read("unsigned", "k", "a")
    trusted.write_bytes(right)
    assert store.read("unsigned", "k", "a") == b"1"


def test_a_body_that_ends_early_leaves_nothing(server: Served) -> None:
    store = server.store("worker")
    store.write(b"whole", "unsigned", "k", "a")

    def cut() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionAbortedError

    client = httpx.Client(verify=tls.trusting(server.folder / "ca.pem"), trust_env=False)
    place = f"https{server.url.removeprefix('stitch')}/v1/files/unsigned/k/a"
    with client, pytest.raises(ConnectionAbortedError):
        client.put(place, content=cut(), headers={"authorization": "Bearer worker"})
    wait_for(lambda: not list((server.folder / "store").rglob(".received/*/*")), "half is removed")
    assert store.read("unsigned", "k", "a") == b"whole"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, file_bytes=1000) as server:
        store = server.store("worker")
        store.write(bytes(1000), "unsigned", "k", "a")
        with refused(Reason.STORE_UNREADABLE, "413 a file has at most 1000 bytes"):
            store.write(bytes(1001), "unsigned", "k", "b")
        assert store.list("unsigned", "k") == ("a",)


def test_what_an_earlier_server_had_not_finished_is_gone(tmp_path: Path) -> None:
    left = tmp_path / "store" / ".received"
    for name in ("long ago", "now"):
        (left / name).mkdir(parents=True)
        (left / name / "half").write_bytes(b"x")
    (left / "of a release before").write_bytes(b"x")
    for name in ("long ago", "of a release before"):
        os.utime(left / name, (1, 1))
    with served(tmp_path) as server:
        [_, own] = sorted(left.iterdir(), key=lambda one: one.name == "now", reverse=True)
        assert list(own.iterdir()) == []
        value = server.metrics.registry.get_sample_value("stitch_store_free_bytes")
        assert value and value > 0


def test_two_servers_share_a_volume(tmp_path: Path) -> None:
    """The second one starts while the first one receives; what either keeps both have."""
    first = Files(tmp_path)
    with first.receiving(("unsigned", "k", "a")) as body:
        body.file.write(b"half")
        second = Files(tmp_path)
        with second.receiving(("unsigned", "k", "b")) as other:
            other.file.write(b"whole")
            other.keep()
        body.keep()
    for files in (first, second):
        assert [one.name for one in files.listed(("unsigned", "k"))] == [
            "/unsigned/k/a", "/unsigned/k/b",
        ]  # fmt: skip
    assert second.remove(("unsigned", "k")) and not first.remove(("unsigned", "k"))
    shutil.rmtree(tmp_path / ".received")  # as too old, by one that starts
    with first.receiving(("unsigned", "k", "a")) as body:
        body.keep()
    assert second.entry(("unsigned", "k", "a"))


def test_a_full_volume_says_so(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root: run as root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    try:
        with served(tmp_path, small) as server:
            store = server.store("worker")
            with refused(Reason.STORE_UNREADABLE, "disk full: "):
                store.write(bytes(2**21), "unsigned", "k", "a")
            assert store.list("unsigned") == ()
            store.write(b"fits", "unsigned", "k", "a")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_calls_are_counted_by_role_method_and_status(server: Served) -> None:
    client = httpx.Client(
        verify=tls.trusting(server.folder / "ca.pem"), trust_env=False,
        base_url=f"https{server.url.removeprefix('stitch')}",
        headers={"authorization": "Bearer signer"},
    )  # fmt: skip
    with client:
        assert client.put("/v1/files/unsigned/k/a", content=b"x").status_code == 204
        assert client.delete("/v1/files/unsigned/k/a").status_code == 204
        assert client.delete("/v1/files/unsigned/k/a").status_code == 404
        assert client.delete("/v1/files/requests/k/a").status_code == 403

    def count(**labels: str) -> float | None:
        name = "stitch_store_requests_total"
        return server.metrics.registry.get_sample_value(name, {"role": "signer", **labels})

    assert count(method="PUT", status="204") == count(method="DELETE", status="204") == 1
    assert count(method="DELETE", status="404") == count(method="DELETE", status="403") == 1


def test_a_volume_that_takes_no_file_is_not_ready(server: Served) -> None:
    shutil.rmtree(server.folder / "store" / ".received")
    (server.folder / "store" / ".received").write_text("no folder")
    client = httpx.Client(verify=tls.trusting(server.folder / "ca.pem"), trust_env=False)
    with client:
        answer = client.get(f"https{server.url.removeprefix('stitch')}/readyz")
    assert answer.status_code == 503 and "takes no file" in answer.text


def test_a_folder_that_is_removed_is_out_of_sight_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    (tmp_path / "unsigned" / "k").mkdir(parents=True)
    (tmp_path / "unsigned" / "k" / "a").write_bytes(b"x")
    seen: list[object] = []
    removed = shutil.rmtree
    monkeypatch.setattr(
        shutil, "rmtree", lambda path: (seen.append(files.entry(("unsigned", "k"))), removed(path))
    )
    assert files.remove(("unsigned", "k")) and seen == [None]
    assert not files.remove(("unsigned", "k"))


def test_a_file_has_its_name_once_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, calls = Files(tmp_path), []
    for name in ("fsync", "replace"):
        call = getattr(os, name)

        def told(*given: Any, name: str = name, call: Any = call) -> Any:
            calls.append(name)
            return call(*given)

        monkeypatch.setattr(os, name, told)
    with files.receiving(("unsigned", "k", "a")) as body:
        body.file.write(b"x")
        body.keep()
    assert calls == ["fsync", "replace"]


def test_probes_need_no_token(server: Served) -> None:
    client = httpx.Client(verify=tls.trusting(server.folder / "ca.pem"), trust_env=False)
    base = f"https{server.url.removeprefix('stitch')}"
    with client:
        assert client.get(f"{base}/healthz").status_code == 200
        assert client.get(f"{base}/readyz").text == "ready\n"
        assert client.get(f"{base}/v1/files/answers/a.json").status_code == 401
