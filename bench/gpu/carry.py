"""`python -m bench.gpu.carry FOLDER`: TensorFlow's CUDA build, where nothing can be fetched.

A lent machine takes 64 MiB a call, and the build's wheel has 570 MB: most of it is machine code of
GPUs that are not there, and symbols. Both are written over with zeros (offsets stay, so nothing is
linked anew), headers left out, and the rest packed: 170 MB in parts of PART_BYTES, with the wheels
that the machine's Python lacks and the native part of stitchcore. There, when all parts lie in one
folder, `sh FOLDER/install.sh` puts them into `python3`, with CUDA 13's libraries under the names by
which TensorFlow asks for those of 12 (docs/gpu.md).

A fat binary is a header, then entries with headers of their own: kind (1 PTX, 2 machine code),
version, length of the header, of the payload; at 28 the architecture. The driver reads headers of
entries that it does not take, and no more.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stitchcore.inject import build

TENSORFLOW, PYTHON, ARCHITECTURE = "2.21.0", "3.12", 90
WHEELS = (
    *("keras==3.13.*", "astunparse", "gast", "google_pasta", "termcolor", "namex", "optree"),
    *("msgspec", "cryptography", "cffi", "pycparser", "nvidia-cuda-runtime-cu12==12.9.*"),
)
"""What TensorFlow and stitchcore import and the lent machine's Python has not."""
PLATFORMS = tuple(f"manylinux{system}_x86_64" for system in ("_2_28", "_2_27", "_2_17", "2014"))
PART_BYTES = 43 << 20
"""Beside a checkout of some 16 MB."""
LEFT_OUT = ("tensorflow/include/",)
MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = struct.Struct("<IHHQ")  # magic, version, its length, that of all entries
ENTRY = struct.Struct("<HHIQ")  # kind, version, length of the header, of the payload
PTX, MACHINE_CODE = 1, 2
SYMBOLS = re.compile(r"\s*\[\s*\d+\]\s+\.(?:sym|str)tab\s+\S+\s+\S+\s+(\S+)\s+(\S+)")
INSTALL = Path(__file__).with_name("install.sh")


def download(folder: Path, *wheels: str) -> None:
    """Wheels for the lent machine's Python. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*command, "--dest", str(folder), *wheels], check=True)


def thinned(library: Path, architecture: int = ARCHITECTURE) -> None:
    """Zeros in place of a library's symbols and of what other GPUs than `architecture` run."""
    data = bytearray(library.read_bytes())
    for begin, size in (*_symbols(library), *_foreign(bytes(data), architecture)):
        data[begin : begin + size] = bytes(size)
    library.write_bytes(data)


def _symbols(library: Path) -> Iterator[tuple[int, int]]:
    """Places of the tables that only debuggers read."""
    said = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True)
    for line in said.stdout.splitlines():
        if found := SYMBOLS.match(line):
            yield int(found[1], 16), int(found[2], 16)


def _foreign(data: bytes, architecture: int) -> Iterator[tuple[int, int]]:
    """Places of payloads that the driver of a GPU of `architecture` does not take."""
    begin = data.find(MAGIC)
    while begin >= 0:
        _, version, length, size = HEADER.unpack_from(data, begin)
        place, end = begin + HEADER.size, begin + HEADER.size + size
        if version != 1 or length != HEADER.size or end > len(data):
            begin = data.find(MAGIC, begin + 4)
            continue
        entries = []
        while place < end:
            kind, _, header, payload = ENTRY.unpack_from(data, place)
            (target,) = struct.unpack_from("<I", data, place + 28)
            entries.append(((kind, target), place + header, payload))
            place += header + payload
        kinds = {kind for kind, _, _ in entries}
        exact = (MACHINE_CODE, architecture)
        kept = exact if exact in kinds else (PTX, architecture)
        yield from ((at, payload) for kind, at, payload in entries if kind != kept)
        begin = data.find(MAGIC, end)


def carry(folder: Path) -> list[Path]:
    """All that travels, in `folder`, in the order of the calls. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stitch-carry-") as scratch:
        downloaded, site = Path(scratch, "wheel"), Path(scratch, "site")
        download(downloaded, f"tensorflow=={TENSORFLOW}")
        [wheel] = downloaded.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            wanted = [n for n in archive.namelist() if not n.startswith(LEFT_OUT)]
            archive.extractall(site, wanted)
        for library in site.rglob("*.so*"):
            thinned(library)
        packed = folder / "tensorflow.tar.xz"
        subprocess.run(["tar", "--use-compress-program=xz -T0 -7", "-cf", packed, "-C", site, "."],
                       check=True)  # fmt: skip
    subprocess.run(["split", "--bytes", str(PART_BYTES), "--numeric-suffixes", packed.name,
                    f"{packed.name}."], cwd=folder, check=True)  # fmt: skip
    packed.unlink()
    rest = folder / "rest"
    download(rest, *WHEELS)
    for library in build.build_launch().parent.glob("*.so"):
        shutil.copy(library, rest)
    shutil.copy(INSTALL, folder)
    return [*sorted(folder.glob(f"{packed.name}.*")), rest]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.carry", description=__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    if given.folder.exists() and (not given.folder.is_dir() or any(given.folder.iterdir())):
        parser.error(f"{given.folder} is there already: two versions of a wheel stop an install")
    absent = [name for name in ("readelf", "split", "tar", "xz") if shutil.which(name) is None]
    if absent:
        parser.error(
            f"no {', '.join(absent)} here: apt-get install binutils coreutils tar xz-utils"
        )
    for path in carry(given.folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
