"""An artifact is read back only as it was signed, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcore.artifact import package
from stitchcore.artifact.manifest import KernelEntry, Manifest, Patch
from stitchcore.artifact.sign import load_or_create_key, public_hex
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused

LIBRARIES = (b"\x7fELF one", b"\x7fELF two")
MANIFEST = Manifest(
    key="ab" * 32,
    digest="cd" * 32,
    target="cpu-x86-64-v3",
    tf="2.21",
    compiler="gcc 12",
    libraries=package.library_entries(LIBRARIES),
    kernels=(KernelEntry("k", 0, "k_1", "kernel"),),
    patch=Patch(),
)


@pytest.fixture
def published(tmp_path: Path) -> tuple[Store, str]:
    store = open_store(str(tmp_path / "store"))
    key = load_or_create_key(tmp_path / "key")
    package.publish(store, MANIFEST, LIBRARIES, key, {"report.json": b"{}"})
    return store, public_hex(key)


def test_round_trip(published: tuple[Store, str]) -> None:
    store, public = published
    assert package.exists(store, MANIFEST.key)
    assert package.load(store, MANIFEST.key, public) == (MANIFEST, LIBRARIES)


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        (MANIFEST.libraries[1].file, lambda data: data[:-1], Reason.BAD_ARTIFACT),
        (MANIFEST.libraries[0].file, lambda data: b"X" + data[1:], Reason.BAD_ARTIFACT),
        ("manifest.json", lambda data: data.replace(b"v3", b"v4"), Reason.BAD_SIGNATURE),
        ("manifest.sig", lambda data: bytes(64), Reason.BAD_SIGNATURE),
    ],
)
def test_a_changed_file_is_refused(
    published: tuple[Store, str], file: str, change: object, reason: Reason
) -> None:
    store, public = published
    assert callable(change)
    data = store.read("artifacts", MANIFEST.key, file)
    store.write(change(data), "artifacts", MANIFEST.key, file)
    with pytest.raises(Refused) as caught:
        package.load(store, MANIFEST.key, public)
    assert caught.value.refusal.reason is reason


def test_another_key_or_a_missing_file_is_refused(
    published: tuple[Store, str], tmp_path: Path
) -> None:
    store, public = published
    other = public_hex(load_or_create_key(tmp_path / "other"))
    with pytest.raises(Refused) as caught:
        package.load(store, MANIFEST.key, other)
    assert caught.value.refusal.reason is Reason.BAD_SIGNATURE
    with pytest.raises(Refused) as caught:
        package.load(store, "0" * 64, public)
    assert caught.value.refusal.reason is Reason.STORE_UNREADABLE


def test_libraries_must_be_the_manifests(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(ValueError, match="other libraries"):
        package.publish(store, MANIFEST, (b"x",), load_or_create_key(tmp_path / "key"), {})
    assert not package.exists(store, MANIFEST.key)
