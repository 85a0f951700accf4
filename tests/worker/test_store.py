"""The store under two writers, a full disk and time-outs: whole artifacts or none, and a reason."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.memory import MemoryFileSystem

from stitch_worker.signer import Signer, run_once
from stitchcore.artifact import package, sign
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused
from tests.worker.handmade import artifact, key_for, submitted, uploaded

WRITERS, ROUNDS = 4, 40


def _files(writer: int) -> dict[str, bytes]:
    data = bytes([writer]) * 200_000
    return {"data": data, "sum": hashlib.sha256(data).hexdigest().encode()}


def _write(root: str, writer: int, barrier: Any) -> None:
    store = open_store(root)
    for number in range(ROUNDS):
        barrier.wait()
        store.publish(_files(writer), "sum", "artifacts", str(number))


@pytest.mark.slow
def test_many_writers_never_mix_their_files(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier = manager.Barrier(WRITERS + 1)
        processes = [
            context.Process(target=_write, args=(str(tmp_path), writer, barrier))
            for writer in range(WRITERS)
        ]
        for process in processes:
            process.start()
        store = open_store(str(tmp_path))
        for number in range(ROUNDS):
            barrier.wait()
            while not store.exists("artifacts", str(number), "sum"):
                pass  # the moment it is there it is whole
            found = store.read("artifacts", str(number), "data")
            said = store.read("artifacts", str(number), "sum").decode()
            assert hashlib.sha256(found).hexdigest() == said
        for process in processes:
            process.join()
            assert process.exitcode == 0
    left = [path for path in (tmp_path / "artifacts").iterdir() if path.name.startswith(".")]
    assert not left, "losers clean up"


def test_a_half_written_folder_is_replaced(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write(b"old", "artifacts", "k", "data")
    assert store.publish(_files(1), "sum", "artifacts", "k")
    assert not store.publish(_files(2), "sum", "artifacts", "k")
    assert store.read("artifacts", "k", "data")[0] == 1


def test_elsewhere_the_last_file_says_that_it_is_complete() -> None:
    order: list[str] = []

    class Watched(MemoryFileSystem):  # type: ignore[misc]
        protocol = "watched"

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            order.append(path.rsplit("/", 1)[-1])
            super().pipe_file(path, value)

    store = Store(Watched(), "/bucket")
    store.delete("artifacts")
    assert not store.is_folder
    assert store.publish({"last": b"1", "a": b"2", "b": b"3"}, "last", "artifacts", "k")
    assert order == ["a", "b", "last"]
    assert not store.publish({"last": b"x"}, "last", "artifacts", "k")
    assert store.list("artifacts", "k") == ("a", "b", "last")
    store.delete("artifacts", "k")
    store.delete("artifacts", "k")
    assert store.list("artifacts", "k") == ()


def test_the_signer_works_on_an_object_store(tmp_path: Path) -> None:
    store = open_store("memory://signer-test")
    key = sign.load_or_create_key(tmp_path / "key")
    submitted(store)
    uploaded(store, artifact())
    public = sign.public_hex(key)
    assert run_once(Signer(store, key, (public,))) == {key_for(): "signed"}
    package.load(store, key_for(), public)


def test_time_outs_are_answers_with_a_reason() -> None:
    class Slow(MemoryFileSystem):  # type: ignore[misc]
        protocol = "slow"

        def _late(self, *_: Any, **__: Any) -> Any:
            raise FSTimeoutError("no answer")

        cat_file = exists = pipe_file = ls = rm = makedirs = _late

    store = Store(Slow(), "/bucket")
    for call in (
        lambda: store.read("a"),
        lambda: store.exists("a"),
        lambda: store.write(b"", "a", "b"),
        lambda: store.list("a"),
        lambda: store.delete("a"),
        lambda: store.publish({"a": b""}, "a", "b"),
        lambda: store.read_answer("a"),
    ):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.refusal.reason is Reason.STORE_UNREADABLE


def test_a_full_disk_tears_nothing_and_work_goes_on_when_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    store = open_store(str(small_disk))
    key = sign.load_or_create_key(tmp_path / "key")
    signer = Signer(store, key, (sign.public_hex(key),))
    submitted(store)
    uploaded(store, artifact())
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="space"):
        filler.write_bytes(bytes(2**21))
    assert run_once(signer) == {key_for(): "store_unreadable"}
    with pytest.raises(Refused, match="disk full"):
        store.write(bytes(2**20), "answers", "x")
    assert store.list("artifacts") == ()
    assert not list((small_disk / "artifacts").glob(".*")), "nothing half-written is left"
    filler.unlink()
    assert run_once(signer) == {key_for(): "signed"}
    package.load(store, key_for(), signer.public_keys[0])


def test_urls_are_opened() -> None:
    assert fsspec.core.url_to_fs("memory://x")[1] == "/x"
