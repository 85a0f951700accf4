"""What is served of an artifact, and for how long it is kept in memory."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from stitch_operator.gateway import archive, trust
from stitch_operator.gateway.archive import KEPT_BYTES, KEPT_SECONDS, Archive, Archives
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused
from tests.operator.gateway.support import KEY, publish


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "store"))
    publish(made, "ef" * 32)
    return made


def listing(*names: object) -> bytes:
    return json.dumps({"key": KEY, "libraries": [{"file": name} for name in names]}).encode()


def test_reports_stay_behind_and_the_tag_follows_the_signature(store: Store) -> None:
    first = archive.pack(store, KEY)
    with tarfile.open(fileobj=io.BytesIO(first.data)) as tar:
        assert tar.getnames() == ["manifest.json", "manifest.sig", "kernels_00.so"]
        assert {one.mode for one in tar} == {0o444}
    assert archive.pack(store, KEY) == first
    store.write(b"t" * 64, "artifacts", KEY, "manifest.sig")
    assert archive.pack(store, KEY).tag != first.tag


@pytest.mark.parametrize(
    "manifest",
    [b"{", b"{}", b"[]", listing(".hidden"), listing("../other/report.json"), listing("a/b"),
     listing(""), listing("x" * 129), listing(*["kernels_00.so"] * 257)],
    ids=["torn", "empty", "list", "dot", "up", "slash", "none", "long", "many"],
)  # fmt: skip
def test_a_manifest_leads_to_no_other_file(store: Store, manifest: bytes) -> None:
    store.write(manifest, "artifacts", KEY, "manifest.json")
    with pytest.raises(Refused) as caught:
        archive.pack(store, KEY)
    assert caught.value.refusal.reason is Reason.BAD_ARTIFACT


def test_what_is_kept_is_bounded_in_time_and_bytes() -> None:
    now = 0.0
    kept = Archives(lambda: now)
    kept.keep("a", Archive(bytes(KEPT_BYTES // 2), "1"))
    kept.keep("b", Archive(bytes(KEPT_BYTES // 2), "2"))
    assert kept.get("a") and kept.get("b")
    kept.keep("c", Archive(b"x", "3"))
    assert kept.get("a") is None and kept.get("b") and kept.get("c")
    kept.drop("b")
    assert kept.get("b") is None
    now = KEPT_SECONDS  # a signature may have been renewed
    assert kept.get("c") is None


def test_two_public_keys_ride_at_most_and_no_list_is_taken_for_an_empty_one(store: Store) -> None:
    store.write(json.dumps({"public_keys": ["a" * 64, "b" * 64]}).encode(), "public_keys.json")
    assert trust.read(store).public_keys == ("a" * 64, "b" * 64)
    assert trust.read(store, ["c" * 64]).public_keys == ("c" * 64, "a" * 64)
    for wrong in (b"{}", b"[]", b'{"artifacts": ["x"]}', b'{"artifacts": 5}'):
        store.write(wrong, "revoked.json")
        with pytest.raises(ValueError, match=r"revoked\.json"):
            trust.read(store)
