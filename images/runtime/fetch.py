"""Headers and the library to link against, of every TensorFlow that jobs may have.

    python3 fetch.py LOCK FOLDER

LOCK has a line per version, as pip reads it (`tensorflow-cpu==2.15.1 --hash=sha256:...`). Each
wheel is checked against its hash and unpacked as far as stitchcore/inject/build.py needs it, into
FOLDER/<version>. Runs inside the build of the image, on the Python of an old Debian.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

PIP = [
    sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
    "--require-hashes", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
    "--abi=cp311", "--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64",
    "--platform=manylinux_2_27_x86_64", "--platform=manylinux_2_28_x86_64",
]  # fmt: skip


def is_needed(member: str) -> bool:
    """Of a wheel: headers, the library of the C API, and the folder that tells the version."""
    top, _, rest = member.partition("/")
    library = rest.startswith("libtensorflow_framework.so")
    return top.endswith(".dist-info") or rest.startswith("include/") or library


def fetch(requirement: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    lock = folder / "lock.txt"
    lock.write_text(requirement + "\n")
    subprocess.run([*PIP, "--dest", str(folder), "--requirement", str(lock)], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if is_needed(name)])
    wheel.unlink()
    lock.unlink()


def main() -> None:
    lock, folder = (Path(argument) for argument in sys.argv[1:])
    for line in lock.read_text().splitlines():
        if line and not line.startswith("#"):
            fetch(line, folder / line.partition(" ")[0].partition("==")[2])


if __name__ == "__main__":
    main()
