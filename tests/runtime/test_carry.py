"""What is taken out of TensorFlow's CUDA build for a machine with one kind of GPU."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path

import pytest

from bench.gpu import carry


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """Of kinds, architectures and payloads."""
    body = b""
    for kind, architecture, payload in entries:
        header = bytearray(64)
        struct.pack_into("<HHIQ", header, 0, kind, 0x101, 64, len(payload))
        struct.pack_into("<I", header, 28, architecture)
        body += bytes(header) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.mark.parametrize("exact", [True, False])
def test_code_of_other_gpus_goes_and_nothing_moves(exact: bool, tmp_path: Path) -> None:
    """Where there is machine code for the GPU its PTX goes too."""
    source, library = tmp_path / "one.c", tmp_path / "one.so"
    entries = [(2, 60, b"volta"), (2, 80, b"ampere"), (1, 90, b"hopper as text")]
    entries += [(2, 90, b"hopper as code")] if exact else []
    fat = fat_binary(*entries)
    data = ", ".join(map(str, fat))
    source.write_text(
        f"const unsigned char fat[] = {{{data}}};\nstatic int once(void) {{ return 41; }}\n"
        "int answer(void) { return once() + 1; }\n"
    )
    subprocess.run(["cc", "-O0", "-shared", "-fPIC", source, "-o", library], check=True)
    before = library.read_bytes()
    carry.thinned(library)
    after = library.read_bytes()
    assert len(after) == len(before) and after != before
    kept = b"hopper as code" if exact else b"hopper as text"
    for _, _, payload in entries:
        assert (payload in after) == (payload == kept)
    assert struct.unpack_from("<I", after, after.find(carry.MAGIC))  # the headers are there
    assert b"once\0" in before and b"once\0" not in after, "symbols that only debuggers read"
    assert ctypes.CDLL(str(library)).answer() == 42
    place = (ctypes.c_ubyte * len(fat)).in_dll(ctypes.CDLL(str(library)), "fat")
    assert bytes(place)[:16] == fat[:16]


def test_bytes_that_only_look_like_one_stay(tmp_path: Path) -> None:
    """The magic number alone, near the end, and with another version."""
    source, library = tmp_path / "one.c", tmp_path / "one.so"
    data = ", ".join(map(str, struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 8) + b"x" * 8 + carry.MAGIC))
    source.write_text(f"const unsigned char none[] = {{{data}}};\n")
    subprocess.run(["cc", "-s", "-shared", "-fPIC", source, "-o", library], check=True)
    before = library.read_bytes()
    carry.thinned(library)
    assert library.read_bytes() == before


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    """Parts and wheels of two packings would be taken for one."""
    kept = tmp_path / "tensorflow.tar.xz.04"
    kept.write_text("of another packing")
    with pytest.raises(SystemExit, match="2"):
        carry.main([str(tmp_path)])
    assert [*tmp_path.iterdir()] == [kept]


def test_an_install_without_cuda_changes_nothing(tmp_path: Path) -> None:
    if [*Path("/usr/local").glob("cuda*/**/libcublas.so.13")]:
        return  # there it would install
    done = subprocess.run(
        ["sh", str(carry.INSTALL)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "no libcublas.so.13" in done.stderr
    assert not [*tmp_path.iterdir()]
