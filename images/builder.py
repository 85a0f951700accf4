"""Builds images with buildah, each once per content, into archives that a node can be given.

Everything lies in one folder outside the checkout: storage, layers, stand-ins, archives. What this
machine needs to reach PyPI (certificates, an index, a proxy) is a secret of the build: in no layer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import archive as archives
from images import bases
from images.catalogue import ROOT, Base, Image

PROGRAMS = ("buildah", "mmdebstrap")
INSTALL = "apt-get install --no-install-recommends buildah mmdebstrap"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
EPOCH = 0
"""Of every file and image. Not a commit's: equal content would have another digest with each, and
buildah takes cached layers whatever time they were made for."""
KEPT = 4
"""Archives of one image, for checkouts that are used side by side."""
STEPS = 120
"""Layers that are kept so that a small change is built in seconds, some 15 GB of them; where there
are more those of no image's present state are removed, and the next build makes its own anew."""
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
        stem = f"{_file_name(image.name)}-{image.architecture}"
        archive = folder() / f"{stem}-{_key(image)}.tar"
        if not archive.is_file():
            _make_base(image.base)
            _build(image, archive, EPOCH)
        archive.touch()
        _forget_older(stem)
        return Built(image, archive, archives.digest(archive))


def _key(image: Image) -> str:
    both = f"{image.content()} {bases.key(image.base)}"
    return hashlib.sha256(both.encode()).hexdigest()[:16]


def _make_base(base: Base) -> None:
    """The stand-in under its public name, where it is not there or is of another recipe."""
    recipe = folder() / f"{_file_name(base.name)}.recipe"
    if recipe.is_file() and recipe.read_text() == bases.key(base):
        return
    with tempfile.TemporaryDirectory(dir=folder()) as context:
        try:
            bases.bootstrap(base, Path(context) / "base.tar")
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{base.name}: {_last(error.stderr)}") from error
        (Path(context) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        time = f"--timestamp={EPOCH}"
        _buildah("build", "--isolation=chroot", time, f"--tag={base.name}", context)
    recipe.write_text(bases.key(base))


def rebuild(image: Image, archive: Path) -> None:
    """Made once more, at another time, by the steps that this may change: nothing is kept of what
    was compiled or installed before. Raises BuildError."""
    with _alone():
        _make_base(image.base)
        _build(image, archive, EPOCH + 1)


def _build(image: Image, archive: Path, now: int) -> None:
    """`now` is what its steps are told the time is."""
    told = (("SOURCE_DATE_EPOCH", str(now)), ("BUILDPLATFORM", "linux/amd64"))
    _buildah("rm", "--all")  # what a build that was killed left
    with _access() as secrets:
        _buildah(
            "build", "--isolation=chroot", "--layers", "--pull-never",
            f"--timestamp={EPOCH}", f"--arch={image.architecture}",
            f"--tag={image.name}", f"--file={ROOT / image.dockerfile}", *secrets,
            *(f"--build-arg={key}={value}" for key, value in (*image.arguments, *told)), str(ROOT),
        )  # fmt: skip
    whole = archive.with_suffix(".part")
    whole.unlink(missing_ok=True)
    _buildah("push", image.name, f"oci-archive:{whole}:{image.name}")
    whole.replace(archive)
    if _buildah("images", "--all", "--quiet").count("\n") > STEPS:
        _buildah("rmi", "--prune")


def _forget_older(stem: str) -> None:
    """Archives that have not been asked for lately; those of a few checkouts stay."""
    found = sorted(
        folder().glob(f"{stem}-{'[0-9a-f]' * 16}.tar"), key=lambda one: one.stat().st_mtime
    )
    for older in found[:-KEPT]:
        older.unlink()


def _file_name(name: str) -> str:
    return name.replace("/", "_").replace(":", "_")


def _buildah(command: str, *arguments: str) -> str:
    """What it printed. Raises BuildError."""
    place = folder()
    done = subprocess.run(
        ["buildah", f"--root={place / 'storage'}", f"--runroot={place / 'run'}",
         "--storage-driver=overlay", command, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise BuildError(f"buildah {command}: {_last(done.stdout)}")
    return done.stdout


@contextmanager
def _access() -> Iterator[list[str]]:
    """How this machine reaches PyPI, for those steps of a build that ask for it."""
    with tempfile.TemporaryDirectory(prefix="stitch-build-") as made:
        pip = Path(made) / "pip.conf"
        pip.write_text(_pip_conf())
        secrets = [f"--secret=id=pip,src={pip}"]
        if CERTIFICATES.is_file():
            secrets.append(f"--secret=id=certificates,src={CERTIFICATES}")
        yield secrets


def _pip_conf() -> str:
    """This machine's settings of pip that a build needs, with its certificates."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    settings = {"cert": str(CERTIFICATES)}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in PIP_SETTINGS:
            settings[option] = value.strip("'\"")
    lines = [f"{option} = {value}\n" for option, value in settings.items()]
    return "".join(["[global]\n", *lines])


def _last(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: builds share layers and names."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
