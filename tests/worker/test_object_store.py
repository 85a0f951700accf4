"""The store in a bucket."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stitch_worker import signer as signers
from stitch_worker.collect import collect
from stitch_worker.signer import TAKEN, Signer, run_once
from stitchcore.artifact import package, sign
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import SIGNATURE
from tests import bucket
from tests.waiting import wait_for
from tests.worker.conftest import Cluster
from tests.worker.handmade import REQUEST, artifact, key_for, submitted, uploaded
from tests.worker.requests import submit, tiny_graph

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer


@pytest.fixture
def server() -> Iterator[ThreadedMotoServer]:
    """An empty S3 with one bucket, where this process and those it starts will find it."""
    with bucket.served() as (made, _):
        yield made


@pytest.fixture
def url(server: ThreadedMotoServer) -> str:
    return bucket.URL


WRITE = """
import sys
from stitchcore.artifact.store import open_store
store = open_store(sys.argv[1])
store.write(b"22", "artifacts", "k", "late")
store.write(b"3", "artifacts", "other", "x")
store.answer("d", {"status": "ready"})
store.delete("artifacts", "gone")
"""


@pytest.mark.slow
def test_what_another_process_has_changed_is_seen(url: str) -> None:
    store = open_store(url)
    for name in ("k", "gone"):
        store.write(b"1", "artifacts", name, "early")
        assert store.list("artifacts", name) == ("early",)
    assert store.list("artifacts") == ("gone", "k")
    assert store.read_answer("d") is None
    subprocess.run([sys.executable, "-c", WRITE, url], check=True)
    assert store.list("artifacts") == ("k", "other")
    assert store.list("artifacts", "k") == ("early", "late")
    assert store.exists("artifacts", "k", "late")
    assert not store.exists("artifacts", "gone", "early")
    assert (store.read_answer("d") or {})["status"] == "ready"
    assert [info["size"] for info in store.details("artifacts", "k").values()] == [1, 2]


@pytest.mark.slow
def test_a_folder_is_complete_when_its_last_file_is_there(url: str) -> None:
    store = open_store(url)
    store.write(b"half", "artifacts", "k", "data")
    assert store.publish({"sum": b"1", "data": b"2"}, "sum", "artifacts", "k")
    assert not store.publish({"sum": b"x", "data": b"x"}, "sum", "artifacts", "k")
    assert store.read("artifacts", "k", "data") == b"2"


def test_it_is_collected_by_age(url: str) -> None:
    store = open_store(url)
    store.write(b"x", "artifacts", "k", SIGNATURE)
    assert collect(store, time.time() + 86400, days=2.0) == ()
    (gone,) = collect(store, time.time() + 86400, days=0.5)
    assert (gone.parts, gone.size) == (("artifacts", "k"), 1)
    assert store.list("artifacts") == ()


def test_a_bucket_that_is_not_there_is_not_made(server: ThreadedMotoServer) -> None:
    store = open_store("s3://mispelt/store")
    with pytest.raises(Refused) as caught:
        store.write(b"", "artifacts", "a")
    assert caught.value.refusal.reason is Reason.STORE_UNREADABLE
    assert "bucket does not exist" in str(caught.value)
    assert not open_store("s3://mispelt/store").exists("artifacts", "a")


def test_a_server_that_is_down_is_a_reason(url: str, server: ThreadedMotoServer) -> None:
    store = open_store(url)
    server.stop()
    with pytest.raises(Refused) as caught:
        store.read("a")
    assert caught.value.refusal.reason is Reason.STORE_UNREADABLE
    assert "Could not connect" in str(caught.value)


def test_the_signer_publishes_what_verifies(
    url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = open_store(url)
    key = sign.load_or_create_key(tmp_path_factory.mktemp("signer") / "key")
    submitted(store)
    uploaded(store, artifact())
    public = sign.public_hex(key)
    assert run_once(Signer(store, key, (public,))) == {key_for(): "signed"}
    package.load(store, key_for(), public)


@pytest.mark.slow
def test_a_graph_is_compiled_signed_and_found(cluster: Cluster, url: str) -> None:
    """By a real worker and a real signer, whose only common ground is the bucket."""
    pytest.importorskip("tensorflow", reason="make installs it: pip install tensorflow-cpu")
    there = dataclasses.replace(cluster, url=url)
    cluster.processes = there.processes
    there.worker()
    there.signer()
    key = submit(there.store, tiny_graph())
    there.enqueue(key)
    wait_for(lambda: there.status(key) == "ready", "an answer")
    answer = there.store.read_answer(key) or {}
    public = sign.public_hex(sign.load_or_create_key(there.folder / "key"))
    package.load(there.store, str(answer["key"]), public)
    wait_for(lambda: there.store.list("unsigned") == (), "what is signed is removed")


def test_a_store_of_folders_makes_them() -> None:
    """What is neither this machine's nor known to have none."""
    made: list[str] = []

    class Remote(type(open_store("memory://x").filesystem)):  # type: ignore[misc]
        protocol = ("sftp", "ssh")

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            made.append(path)

    Store(Remote(), "/there").write(b"", "a", "b")
    assert made == ["/there/a"]


@pytest.mark.slow
def test_two_signers_at_once_write_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket files are put one by one: whoever's stands in the end, they fit together."""
    store, other = open_store(url), open_store(url)
    submitted(store)
    made = artifact()
    uploaded(store, made)
    key = sign.load_or_create_key(Path(tempfile.mkdtemp()) / "key")
    first, second = (Signer(one, key, (sign.public_hex(key),)) for one in (store, other))
    write, turns = Store.write, []

    def in_turn(self: Store, data: bytes, *parts: str) -> None:
        """The second signer begins, and ends, while the first one publishes."""
        if self is store and parts[0] == "artifacts" and not turns:
            turns.append(parts)
            time.sleep(1.1)  # another second
            assert run_once(second) == {made.key: "signed"}
        write(self, data, *parts)

    monkeypatch.setattr(Store, "write", in_turn)
    assert run_once(first) == {made.key: "signed"}
    package.load(store, made.key, first.public_keys[0])
    assert (store.read_answer(REQUEST) or {})["status"] == "ready"


def test_what_another_signer_takes_away_is_not_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url)
    submitted(store)
    made = artifact()
    uploaded(store, made)
    key = sign.load_or_create_key(Path(tempfile.mkdtemp()) / "key")
    signer = Signer(store, key, (sign.public_hex(key),))
    checked = signers.check_files

    def half_gone(of: str, files: dict[str, bytes], expected: dict[str, str]) -> Any:
        """It has listed what the other one had not removed yet."""
        monkeypatch.undo()
        other = Signer(open_store(url), key, signer.public_keys)
        assert run_once(other) == {made.key: "signed"}
        return checked(of, {"manifest.json": files["manifest.json"]}, expected)

    monkeypatch.setattr(signers, "check_files", half_gone)
    assert run_once(signer) == {made.key: TAKEN}
    assert (open_store(url).read_answer(REQUEST) or {})["status"] == "ready"
