"""Which images there are, what each is made of, and the public image that each begins with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TENSORFLOWS = tuple(f"2.{minor}" for minor in range(15, 22))
IGNORED = frozenset(("__pycache__", "lib"))
"""Folders below the sources that .dockerignore keeps out of a build."""


@dataclass(frozen=True)
class Base:
    """A public image, and the Debian packages that stand in for it where no registry is reached.

    With `python` it has /usr/local/bin/python and can make virtual environments."""

    name: str
    suite: str
    packages: tuple[str, ...] = ()
    python: bool = False


@dataclass(frozen=True)
class Image:
    """One image. `sources` are the files and folders of the checkout that it is made of."""

    name: str
    dockerfile: str
    sources: tuple[str, ...]
    base: Base
    arguments: tuple[tuple[str, str], ...] = ()
    architecture: str = "amd64"

    def files(self) -> Iterator[Path]:
        """All that its build may read, in order."""
        for source in (self.dockerfile, ".dockerignore", *self.sources):
            path = ROOT / source
            yield from sorted(filter(_is_source, path.rglob("*"))) if path.is_dir() else [path]

    def content(self) -> str:
        """Changes with whatever may change the image: 16 digits."""
        told = [self.name, self.architecture, repr(self.base), repr(self.arguments)]
        digest = hashlib.sha256("\0".join(told).encode())
        for path in self.files():
            digest.update(f"\0{path.relative_to(ROOT)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:16]


def _is_source(path: Path) -> bool:
    return path.is_file() and not IGNORED.intersection(path.relative_to(ROOT).parts)


OLD_DEBIAN = Base("docker.io/library/debian:bullseye-slim", "bullseye", ("ca-certificates",))
PYTHON = Base(
    "docker.io/library/python:3.11-slim-bookworm",
    "bookworm",
    ("ca-certificates", "netbase", "tzdata"),
    python=True,
)


def runtime(architecture: str = "amd64") -> Image:
    """What jobs get."""
    sources = ("images/runtime", "stitchcore/__init__.py", "stitchcore/inject", "LICENSE")
    return Image(
        "localhost/stitchcore/runtime:dev",
        "images/runtime/Dockerfile",
        sources,
        OLD_DEBIAN,
        (("TARGETARCH", architecture),),
        architecture,
    )


SERVICE = ("stitchcore", "worker/stitch_worker", "LICENSE")


def operator() -> Image:
    """Webhook, gateway, reconciler, signer."""
    sources = ("images/operator", "operator/stitch_operator", *SERVICE)
    return Image("localhost/stitchcore/operator:dev", "images/operator/Dockerfile", sources, PYTHON)


def worker(tensorflow: str = "2.21", *, cuda: bool = False) -> Image:
    """The compiler behind a queue, for jobs of one TensorFlow."""
    variant = f"tf{tensorflow}" + ("-cuda12" if cuda else "")
    return Image(
        f"localhost/stitchcore/worker:dev-{variant}",
        "images/worker/Dockerfile",
        ("images/worker", *SERVICE),
        PYTHON,
        (("LOCK", variant),),
    )


def default() -> tuple[Image, ...]:
    """What `make images` builds."""
    return runtime(), operator(), worker()
