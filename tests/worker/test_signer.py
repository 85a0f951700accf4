"""The signer signs what was asked for and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stitch_worker import signer as signers
from stitch_worker import unsigned
from stitch_worker.revocation import revoke, revoked
from stitch_worker.signer import Signer, announce, resign, run_once
from stitchcore.artifact import package, sign
from stitchcore.artifact.check import MAXIMUM_FILE_BYTES
from stitchcore.artifact.manifest import MAXIMUM_PARSED_BYTES
from stitchcore.artifact.package import Unsigned
from stitchcore.artifact.ratio import step_ratio
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import MANIFEST, SIGNATURE
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker import handmade
from tests.worker.handmade import REQUEST, artifact, key_for, library, submitted, uploaded
from tests.worker.requests import python_path


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    key = sign.load_or_create_key(tmp_path / "key")
    made = Signer(open_store(str(tmp_path / "store")), key, (sign.public_hex(key),))
    submitted(made.store)
    return made


def answer(store: Store) -> dict[str, Any]:
    return store.read_answer(REQUEST) or {}


def test_what_holds_is_signed_published_and_answered(signer: Signer) -> None:
    made = artifact()
    uploaded(signer.store, made)
    assert run_once(signer) == {made.key: "signed"}
    manifest, libraries = package.load(signer.store, made.key, signer.public_keys[0])
    assert manifest.issued > 1_700_000_000
    assert libraries == (library(),)
    found = answer(signer.store)
    assert (found["status"], found["key"], found["token"]) == ("ready", made.key, 7)
    assert (found["spent"], found["account"]) == ({"compile": 2.0, "measure": 1.0}, 5)
    assert found["open"] == ["network"]
    assert found["ratio"] == 1.0, "its report has no timed region"
    assert not signer.store.list(unsigned.FOLDER)
    assert run_once(signer) == {}


def test_what_a_later_release_says_of_an_artifact_stays(signer: Signer) -> None:
    """Else signers of two releases would write two manifests of it, and either's signature is of
    its own."""
    made = artifact()
    told = json.loads(made.files[MANIFEST])
    later = {**told, "later": 1, "expect": {**told["expect"], "later": 2}}
    uploaded(signer.store, Unsigned(made.key, {**made.files, MANIFEST: json.dumps(later).encode()}))
    assert run_once(signer) == {made.key: "signed"}
    signed = json.loads(signer.store.read("artifacts", made.key, MANIFEST))
    assert signed == {**later, "issued": signed["issued"]} and signed["issued"] > 1_700_000_000
    package.load(signer.store, made.key, signer.public_keys[0])


def test_the_answer_carries_what_the_worker_measured(signer: Signer) -> None:
    made = artifact()
    regions = [
        {"stitched": True, "proof": {"ratio": [0.8, 0.9, 1.0]}},
        {"stitched": True, "proof": {"ratio": [0.5, 0.6, 0.7]}},
        {"stitched": False, "proof": {"ratio": [0.1, 0.2, 0.3]}},
    ]
    report = {"report.json": json.dumps({"regions": regions}).encode()}
    uploaded(signer.store, Unsigned(made.key, {**made.files, **report}))
    assert run_once(signer) == {made.key: "signed"}
    assert answer(signer.store)["ratio"] == 2.0


REPORTS = {
    "empty": "",
    "a list": "[]",
    "a region that is none": '{"regions": [1]}',
    "no regions": '{"regions": 3}',
    "endless depth": "[" * 100_000,
    "a number beyond all": '{"regions": [{"stitched": true, "proof": {"ratio": [1%s]}}]}'
    % ("0" * 400),
    "more than is parsed": "{}" + " " * MAXIMUM_PARSED_BYTES,
}


@pytest.mark.parametrize("case", REPORTS, ids=lambda name: name.replace(" ", "_"))
def test_a_report_that_says_nothing_readable_is_refused(signer: Signer, case: str) -> None:
    report = REPORTS[case]
    made = artifact()
    uploaded(signer.store, Unsigned(made.key, {**made.files, "report.json": report.encode()}))
    assert run_once(signer) == {made.key: "bad_artifact"}
    assert not signer.store.list("artifacts")
    assert answer(signer.store)["reason"] == "bad_artifact"
    assert run_once(signer) == {}, "it is not met again"


def test_a_ratio_beyond_all_numbers_is_refused_wherever_it_is_read() -> None:
    with pytest.raises(Refused) as caught:
        step_ratio(REPORTS["a number beyond all"].encode(), b"{}")
    assert caught.value.refusal.reason is Reason.BAD_ARTIFACT


@pytest.mark.parametrize("name", ["kernels_00.so", "other.so", MANIFEST, unsigned.MARKER])
def test_a_file_without_end_is_not_read(signer: Signer, name: str) -> None:
    """A worker that was taken over writes what ends whoever reads it, and the next signer too."""
    made = artifact()
    uploaded(signer.store, made)
    with Path(signer.store.path(unsigned.FOLDER, made.key, name)).open("ab") as file:
        file.truncate(2**40)
    tracemalloc.start()
    assert run_once(signer) == {made.key: "bad_artifact"}
    assert tracemalloc.get_traced_memory()[1] < 3 * MAXIMUM_FILE_BYTES
    tracemalloc.stop()
    assert run_once(signer) == {}, "it is not met again"
    assert not signer.store.list("artifacts")


def test_no_folder_ends_the_signer(signer: Signer) -> None:
    """Names that the store has no path for, as only a worker that is not ours writes them."""
    made = artifact()
    uploaded(signer.store, made)
    folder = Path(signer.store.path(unsigned.FOLDER))
    (folder / made.key / "a\\b").touch()
    (folder / "a\\b").mkdir()
    assert run_once(signer) == {"a\\b": "bad_artifact", made.key: "bad_artifact"}
    assert answer(signer.store)["reason"] == "bad_artifact"
    assert signer.store.list(unsigned.FOLDER) == ("a\\b",)
    uploaded(signer.store, made)
    assert run_once(signer)[made.key] == "signed"


def changed(**files: bytes) -> Callable[[], Unsigned]:
    made = artifact()
    return lambda: Unsigned(made.key, {**made.files, **files})


def damaged() -> Unsigned:
    made = artifact()
    name = next(name for name in made.files if name.endswith(".so"))
    return Unsigned(made.key, {**made.files, name: made.files[name][:-1]})


def without_library() -> Unsigned:
    made = artifact()
    return Unsigned(made.key, {n: d for n, d in made.files.items() if not n.endswith(".so")})


OTHER = "ef" * 32
BAD: dict[str, tuple[Callable[[], Unsigned], Reason]] = {
    "forged manifest": (changed(**{"manifest.json": b"{}"}), Reason.BAD_ARTIFACT),
    "truncated manifest": (
        lambda: Unsigned(key_for(), {"manifest.json": artifact().files["manifest.json"][:-2]}),
        Reason.BAD_ARTIFACT,
    ),
    "truncated library": (damaged, Reason.BAD_ARTIFACT),
    "missing library": (without_library, Reason.BAD_ARTIFACT),
    "a file too many": (changed(**{"extra.so": b"x"}), Reason.BAD_ARTIFACT),
    "swapped digest": (lambda: artifact(digest=OTHER), Reason.DIGEST_MISMATCH),
    "another graph's key": (
        lambda: artifact(digest=OTHER, key=key_for(digest=OTHER)),
        Reason.DIGEST_MISMATCH,
    ),
    "a key made up": (lambda: artifact(key=OTHER), Reason.DIGEST_MISMATCH),
    "wrong architecture": (
        lambda: artifact(target="cpu-x86-64-v4", key=key_for(target="cpu-x86-64-v4")),
        Reason.WRONG_TARGET,
    ),
    "library of another processor": (
        lambda: artifact((library(handmade.ARM),)),
        Reason.WRONG_TARGET,
    ),
    "not a shared object": (lambda: artifact((library(kind=2),)), Reason.BAD_ARTIFACT),
    "not even ELF": (lambda: artifact((b"#!/bin/sh" + bytes(64),)), Reason.BAD_ARTIFACT),
    "wrong TensorFlow": (
        lambda: artifact(tf="2.15", key=key_for(tf="2.15")),
        Reason.UNSUPPORTED_VERSION,
    ),
    "another ABI": (lambda: artifact(abi=2), Reason.DIGEST_MISMATCH),
    "another compiler than its key says": (
        lambda: artifact(compiler="clang"),
        Reason.DIGEST_MISMATCH,
    ),
    "an operation that no patch may add": (
        changed(
            **{
                "manifest.json": artifact()
                .files["manifest.json"]
                .replace(
                    b'"regions":[]',
                    b'"regions":[{"name":"r","add":['
                    b'{"name":"x","op":"PyFunc","attr":"","device_of":0,"inputs":[]}]}]',
                )
            }
        ),
        Reason.BAD_ARTIFACT,
    ),
}


@pytest.mark.parametrize("case", BAD, ids=lambda name: name.replace(" ", "_"))
def test_what_does_not_hold_is_refused_with_the_reason(signer: Signer, case: str) -> None:
    make, reason = BAD[case]
    made = make()
    uploaded(signer.store, made)
    assert run_once(signer) == {made.key: reason.value}
    assert not signer.store.list("artifacts")
    assert not signer.store.list(unsigned.FOLDER)
    found = answer(signer.store)
    assert (found["status"], found["reason"]) == ("refused", reason.value)


def test_an_artifact_under_another_key_is_refused(signer: Signer) -> None:
    uploaded(signer.store, artifact(), under=OTHER)
    assert run_once(signer) == {OTHER: "digest_mismatch"}
    assert not signer.store.list("artifacts")


def test_an_artifact_without_its_request_stays_unsigned(tmp_path: Path, signer: Signer) -> None:
    signer.store.delete("requests", REQUEST)
    uploaded(signer.store, artifact())
    assert run_once(signer) == {key_for(): "store_unreadable"}
    assert not signer.store.list("artifacts")
    submitted(signer.store)
    assert run_once(signer) == {key_for(): "signed"}


def test_an_unfinished_upload_is_left_alone(signer: Signer) -> None:
    made = artifact()
    for name, data in made.files.items():
        signer.store.write(data, unsigned.FOLDER, made.key, name)
    assert run_once(signer) == {}
    assert not signer.store.list("artifacts")


def test_a_refusal_does_not_overrule_a_later_worker(signer: Signer) -> None:
    signer.store.answer(REQUEST, {"status": "pending", "stage": "lower", "token": 9})
    uploaded(signer.store, damaged(), token=8)
    run_once(signer)
    assert answer(signer.store)["stage"] == "lower"
    signer.store.answer(REQUEST, {"status": "pending", "stage": "sign", "token": 9})
    uploaded(signer.store, damaged(), token=8)
    run_once(signer)
    assert answer(signer.store)["status"] == "refused"


def test_the_first_artifact_of_a_key_stays(signer: Signer) -> None:
    uploaded(signer.store, artifact())
    run_once(signer)
    uploaded(signer.store, artifact((library(content=b"other"),)))
    assert run_once(signer) == {key_for(): "signed"}
    _, libraries = package.load(signer.store, key_for(), signer.public_keys[0])
    assert libraries == (library(),)


def test_keys_rotate_and_artifacts_are_revoked(signer: Signer, tmp_path: Path) -> None:
    store, old = signer.store, signer.public_keys[0]
    uploaded(store, artifact())
    run_once(signer)
    new = sign.load_or_create_key(tmp_path / "new")
    both = Signer(store, new, (sign.public_hex(new), old))
    announce(both)
    assert json.loads(store.read(signers.PUBLIC_KEYS)) == {"public_keys": list(both.public_keys)}
    with pytest.raises(Refused):
        package.load(store, key_for(), sign.public_hex(new))
    assert resign(both) == 1
    assert resign(both) == 0
    package.load(store, key_for(), sign.public_hex(new))
    revoke(store, [key_for()])
    assert revoked(store) == (key_for(),)
    assert not package.exists(store, key_for())
    uploaded(store, artifact())
    assert run_once(both) == {key_for(): "revoked"}
    assert not package.exists(store, key_for()), "a revoked artifact is not signed again"


def test_what_a_leaked_key_signed_is_removed_and_not_signed_again(
    signer: Signer, tmp_path: Path
) -> None:
    """The drill: whoever has the key has put an artifact of his own into the bucket."""
    store, old = signer.store, signer.public_keys[0]
    uploaded(store, artifact())
    run_once(signer)
    (tmp_path / "leaked").write_text("")
    command = ["--store", str(tmp_path / "store"), "--key", str(tmp_path / "new"), "--once"]
    command += ["--leaked-file", str(tmp_path / "leaked")]
    assert signers.main([*command, "--also-valid", old]) == 0
    assert package.exists(store, key_for())
    (tmp_path / "leaked").write_text(old)
    assert signers.main([*command, "--also-valid", old]) == 2, "it cannot be valid too"
    assert signers.main(command) == 0
    assert not package.exists(store, key_for())
    new = sign.public_hex(sign.load_or_create_key(tmp_path / "new"))
    assert json.loads(store.read(signers.PUBLIC_KEYS)) == {"public_keys": [new]}
    uploaded(store, artifact())
    assert signers.main(command) == 0
    package.load(store, key_for(), new)


def test_what_no_valid_key_signed_is_not_signed_again(signer: Signer, tmp_path: Path) -> None:
    uploaded(signer.store, artifact())
    run_once(signer)
    new = sign.load_or_create_key(tmp_path / "new")
    assert resign(Signer(signer.store, new, (sign.public_hex(new),))) == 0


def test_the_process_signs_and_ends_at_a_signal(signer: Signer, tmp_path: Path) -> None:
    uploaded(signer.store, artifact())
    command = [sys.executable, "-m", "stitch_worker.signer", "--store", str(tmp_path / "store")]
    command += ["--key", str(tmp_path / "key")]
    done = subprocess.run(
        [*command, "--once"], env={"PYTHONPATH": python_path()}, timeout=RUN_SECONDS
    )
    assert done.returncode == 0
    package.load(signer.store, key_for(), signer.public_keys[0])
    assert msgspec.json.decode(signer.store.read(signers.PUBLIC_KEYS))


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """The process, on files as a Secret's volume has them."""
    command = [sys.executable, "-m", "stitch_worker.signer", "--store", str(folder / "store")]
    command += ["--key", str(folder / "key"), "--also-valid-file", str(folder / "also-valid")]
    process = subprocess.Popen(command, env={"PYTHONPATH": python_path()})
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(RUN_SECONDS) == 0


@pytest.mark.slow
def test_a_changed_key_is_taken_and_everything_signed_again(signer: Signer, tmp_path: Path) -> None:
    """As the reconciler does it: the next one's public half, then the next one itself, then it
    alone. The process ends in the middle, and files change one after the other."""
    store, old = signer.store, signer.public_keys[0]
    uploaded(store, artifact())
    (tmp_path / "also-valid").write_text("")
    new = sign.load_or_create_key(tmp_path / "new")

    def announced(*keys: str) -> None:
        def there() -> bool:
            told = store.exists(signers.PUBLIC_KEYS) and store.read(signers.PUBLIC_KEYS)
            return bool(told) and msgspec.json.decode(told) == {"public_keys": list(keys)}

        wait_for(there, f"{keys} are announced")

    with serving(tmp_path):
        announced(old)
        (tmp_path / "also-valid").write_text(sign.public_hex(new))
        announced(old, sign.public_hex(new))
        (tmp_path / "key").write_bytes((tmp_path / "new").read_bytes())
        announced(sign.public_hex(new))  # it does not know the old one any more
        wait_for(lambda: verified(store, old))
        (tmp_path / "also-valid").write_text(old + "\n")
        announced(sign.public_hex(new), old)
        wait_for(lambda: verified(store, sign.public_hex(new)))
        (tmp_path / "also-valid").write_text("no key")  # stays as it was
        (tmp_path / "also-valid").write_text("")
        announced(sign.public_hex(new))


def test_signing_again_that_was_cut_short_is_done_at_the_next_start(
    signer: Signer, tmp_path: Path
) -> None:
    uploaded(signer.store, artifact())
    run_once(signer)
    (tmp_path / "also-valid").write_text(signer.public_keys[0])
    (tmp_path / "key").unlink()
    new = sign.load_or_create_key(tmp_path / "key")
    with serving(tmp_path):
        wait_for(lambda: verified(signer.store, sign.public_hex(new)))


def verified(store: Store, public: str) -> bool:
    if not package.exists(store, key_for()):
        return False
    data = store.read("artifacts", key_for(), MANIFEST)
    return sign.verify(public, store.read("artifacts", key_for(), SIGNATURE), data)


@pytest.mark.slow
def test_a_probe_sees_that_the_signer_is_at_work(signer: Signer, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    os.utime(beat, (1, 1))  # of a process before
    command = [sys.executable, "-m", "stitch_worker.signer", "--store", str(tmp_path / "store")]
    command += ["--key", str(tmp_path / "key"), "--heartbeat", str(beat)]
    process = subprocess.Popen(command, env={"PYTHONPATH": python_path()})
    try:
        wait_for(lambda: beat.exists() and beat.stat().st_mtime > 1, "a heartbeat")
        process.send_signal(signal.SIGSTOP)
        seen = beat.stat().st_mtime
        time.sleep(1.5)
        assert beat.stat().st_mtime == seen, "one that stands still touches nothing"
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: beat.stat().st_mtime > seen, "the next one")
    finally:
        process.terminate()
    assert process.wait(timeout=RUN_SECONDS) == 0
