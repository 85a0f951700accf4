"""Artifacts: tables, manifests, signatures and the store refuse what is not theirs."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from stitchcore.artifact.keys import content_key
from stitchcore.artifact.manifest import AddedNode, Manifest, Patch, RegionPatch, decode, encode
from stitchcore.artifact.sign import load_or_create_key, public_hex, sign, verify
from stitchcore.artifact.store import open_store
from stitchcore.errors import Reason, Refused
from stitchcore.launch.cpu_table import TENSOR, VARIABLE, Binding, Guard, SymbolSource, launch_table
from stitchcore.loop_ir.index import Variable, ceil_divide
from stitchcore.loop_ir.nodes import Buffer, Kernel, Phase, Role, Scope, Section

BATCH = Variable("B")


def _kernel() -> Kernel:
    inputs = Buffer("x", "f32", (BATCH, 8), Scope.DEVICE, Role.INPUT)
    outputs = Buffer("y", "f32", (BATCH, 8), Scope.DEVICE, Role.OUTPUT)
    section = Section("t", ceil_divide(BATCH, 4), ())
    return Kernel("k", ("B",), (inputs, outputs), (Phase((section, section)),), aliases=((0, 0),))


def test_launch_table_layout() -> None:
    table = launch_table(
        _kernel(),
        [SymbolSource(2, 0)],
        [Binding(VARIABLE, 5)],
        [(Binding(TENSOR, 0), (BATCH, 8))],
        [Guard(2, (BATCH, 8))],
    )
    symbol, eight = (2, 1, 0), (2, 0, 8)
    assert table[:11] == (1, 1, 2, 0, 1, 0, 1, 1, 5, 1, 0)
    assert table[11:19] == (0, 2, *symbol, *eight)
    assert table[19:24] == (1, 0, 0, 1, 2)
    assert table[24:31] == (2, *symbol, *eight)
    assert table[31:35] == (2, 0, 0, 1)
    assert table[35] == len(table) - 36


def test_launch_table_counts_must_match() -> None:
    with pytest.raises(ValueError, match="symbols, inputs, outputs"):
        launch_table(_kernel(), [], [Binding(TENSOR, 0)], [(Binding(TENSOR, 0), (BATCH, 8))])


def _manifest(operation: str = "StitchedFusion") -> Manifest:
    added = (AddedNode("n", operation, "", 0, ("1:0",)),)
    patch = Patch((RegionPatch("r", add=added),))
    return Manifest("k", "d", "cpu-x86-64-v3", "2.21", "gcc", (), (), patch)


def test_manifest_round_trips_and_ignores_newer_fields() -> None:
    data = encode(_manifest())
    assert decode(data) == _manifest()
    assert decode(data[:-1] + b',"newer":1}') == _manifest()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", encode(_manifest("PyFunc"))])
def test_manifest_refuses_what_is_not_one(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_every_truncation_of_a_manifest_is_refused() -> None:
    data = encode(_manifest())
    for length in range(len(data)):
        with pytest.raises(msgspec.DecodeError):
            decode(data[:length])


def test_signature_covers_every_bit(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "config" / "key")
    data = encode(_manifest())
    signature = sign(key, data)
    public = public_hex(load_or_create_key(tmp_path / "config" / "key"))
    assert verify(public, signature, data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        assert not verify(public, signature, bytes(changed))
    assert not verify(public, signature[:-1], data)
    assert not verify(public_hex(load_or_create_key(tmp_path / "other")), signature, data)


def test_private_key_is_the_users_alone_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "key"
    load_or_create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="not an Ed25519 key"):
        load_or_create_key(path)


def test_store_publishes_whole_files(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    assert store.read_answer("d") is None
    assert store.list("artifacts", "k") == ()
    store.publish({"b": b"2", "a": b"1"}, "a", "artifacts", "k")
    store.publish({"b": b"2", "a": b"1"}, "a", "artifacts", "k")
    assert store.list("artifacts", "k") == ("a", "b")
    store.answer("d", {"status": "ready"})
    found = store.read_answer("d")
    assert found is not None and {k: found[k] for k in found if k != "code"} == {"status": "ready"}


def test_store_refuses_to_leave_its_root_and_names_what_it_cannot_read(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for name in ("..", "a/b", "", "."):
        with pytest.raises(ValueError, match="not a name"):
            store.read("artifacts", name)
    with pytest.raises(Refused) as caught:
        store.read("artifacts", "missing")
    assert caught.value.refusal.reason is Reason.STORE_UNREADABLE
    assert "missing" in str(caught.value)


def test_content_keys_do_not_collide_by_concatenation() -> None:
    assert content_key("k", ["ab", "c"]) != content_key("k", ["a", "bc"])
    assert content_key("k", ["a"]) != content_key("l", ["a"])
