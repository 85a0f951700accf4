"""Builds images with buildah, each once per content, into archives that a node can be given.

Everything lies in one folder outside the checkout: storage, layers, stand-ins, archives. What this
machine needs to reach PyPI (certificates, an index, a proxy) is mounted for the build only.
"""

from __future__ import annotations

import configparser
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import bases
from images.catalogue import ROOT, Base, Image

PROGRAMS = ("buildah", "mmdebstrap")
INSTALL = "apt-get install --no-install-recommends buildah mmdebstrap"
CERTIFICATES = Path("/etc/ssl/certs")
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout")


class BuildError(RuntimeError):
    """An image that could not be built, with the end of what was said."""


@dataclass(frozen=True)
class Built:
    """`archive` is an OCI archive; `digest` of its manifest names exactly this image."""

    image: Image
    archive: Path
    digest: str


def unable() -> str | None:
    """Why nothing can be built here, with the command that mends it."""
    if os.getuid() != 0:
        return "images are built as root. Mend: `sudo make images`"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"missing: {', '.join(absent)}. Mend: `{INSTALL}`" if absent else None


def folder() -> Path:
    """Where images lie, for all checkouts of this user."""
    return Path.home() / ".cache" / "stitch-testbed" / "images"


def build(image: Image) -> Built:
    """The image of the checkout's present content. Raises BuildError."""
    if reason := unable():
        raise BuildError(reason)
    with _alone():
        name = image.name.replace("/", "_").replace(":", "_")
        archive = folder() / f"{name}-{image.architecture}-{_key(image)}.tar"
        if not archive.is_file():
            _make_base(image.base)
            _build(image, archive)
            _forget_older(archive)
        return Built(image, archive, digest_of(archive))


def digest_of(archive: Path) -> str:
    """Of the one manifest in an OCI archive."""
    return str(_index(archive)["manifests"][0]["digest"])


def config_of(archive: Path) -> dict[str, Any]:
    """The image's configuration: user, entry point, environment, history."""
    with tarfile.open(archive) as opened:
        manifest = _blob(opened, digest_of(archive))
        return _blob(opened, manifest["config"]["digest"])


def files_of(archive: Path) -> dict[str, tarfile.TarInfo]:
    """What a container finds at each path, layers laid over one another."""
    found: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(archive) as opened:
        for layer in _blob(opened, digest_of(archive))["layers"]:
            blob = opened.extractfile(_path(layer["digest"]))
            assert blob is not None
            with tarfile.open(fileobj=blob, mode="r:*") as content:
                for member in content:
                    _lay(found, member)
    return found


def _lay(found: dict[str, tarfile.TarInfo], member: tarfile.TarInfo) -> None:
    path = "/" + member.name.lstrip("./")
    parent, _, name = path.rpartition("/")
    if not name.startswith(".wh."):
        found[path] = member
        return
    gone = f"{parent}/{name.removeprefix('.wh.')}" if name != ".wh..wh..opq" else parent
    kept = {} if name != ".wh..wh..opq" else {parent}
    for one in [one for one in found if one == gone or one.startswith(gone + "/")]:
        if one not in kept:
            del found[one]


def _index(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as opened:
        member = opened.extractfile("index.json")
        assert member is not None
        index: dict[str, Any] = json.load(member)
        return index


def _blob(opened: tarfile.TarFile, digest: str) -> dict[str, Any]:
    member = opened.extractfile(_path(digest))
    assert member is not None
    document: dict[str, Any] = json.load(member)
    return document


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _key(image: Image) -> str:
    return f"{image.content()}-{bases.key(image.base)[:8]}"


def _make_base(base: Base) -> None:
    """The stand-in under its public name, where it is not there or is of another recipe."""
    archive = folder() / f"base-{base.suite}-{bases.key(base)}.tar"
    tagged = archive.with_suffix(".tagged")
    if tagged.is_file():
        return
    try:
        bases.bootstrap(base, archive)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{base.name}: {_last(error.stderr)}") from error
    with tempfile.TemporaryDirectory(dir=folder()) as context:
        os.link(archive, Path(context) / "base.tar")
        (Path(context) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        _buildah("build", "--isolation=chroot", "--timestamp=0", f"--tag={base.name}", context)
    archive.unlink()
    tagged.touch()


def _build(image: Image, archive: Path) -> None:
    with _access() as mounts:
        arguments = [f"--build-arg={key}={value}" for key, value in image.arguments.items()]
        epoch = image.epoch()
        _buildah(
            "build", "--isolation=chroot", "--layers", "--pull-never", f"--timestamp={epoch}",
            f"--build-arg=SOURCE_DATE_EPOCH={epoch}", f"--arch={image.architecture}",
            f"--tag={image.name}", f"--file={ROOT / image.dockerfile}",
            *arguments, *mounts, str(ROOT),
        )  # fmt: skip
    whole = archive.with_suffix(".part")
    whole.unlink(missing_ok=True)
    _buildah("push", image.name, f"oci-archive:{whole}:{image.name}")
    whole.replace(archive)


def _forget_older(archive: Path) -> None:
    """An archive replaces that of an earlier content."""
    stem = archive.name.removesuffix(".tar").rsplit("-", 2)[0]
    for older in folder().glob(f"{stem}-*.tar"):
        if older != archive and older.name.count("-") == archive.name.count("-"):
            older.unlink()


def _buildah(command: str, *arguments: str) -> None:
    place = folder()
    done = subprocess.run(
        ["buildah", f"--root={place / 'storage'}", f"--runroot={place / 'run'}",
         "--storage-driver=overlay", command, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise BuildError(f"buildah {command}: {_last(done.stdout)}")


@contextmanager
def _access() -> Iterator[list[str]]:
    """Mounts for the build only: how this machine reaches PyPI."""
    with tempfile.TemporaryDirectory(prefix="stitch-build-") as made:
        pip = Path(made) / "pip.conf"
        pip.write_text(_pip_conf())
        mounts = [f"--volume={pip}:/etc/pip.conf:ro"]
        if (CERTIFICATES / "ca-certificates.crt").is_file():
            mounts.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
        yield mounts


def _pip_conf() -> str:
    """This machine's settings of pip that a build needs, with its certificates."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    settings = {"cert": str(CERTIFICATES / "ca-certificates.crt")}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in PIP_SETTINGS:
            settings[option] = value.strip("'\"")
    written = configparser.ConfigParser(interpolation=None)
    written["global"] = settings
    with tempfile.TemporaryFile("w+") as file:
        written.write(file)
        file.seek(0)
        return file.read()


def _last(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: builds share layers and names."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
