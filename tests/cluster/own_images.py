"""The images that tests run: the product's, made from its Dockerfiles, and two that stand in for
images of others. Each is built once per content; a node is given each once."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from images import builder, catalogue
from images.builder import Built
from images.catalogue import Base, Image
from tests.cluster.cluster import Cluster

FOLDER = "tests/cluster/dockerfiles"
DEBIAN = Base("docker.io/library/debian:bookworm-slim", "bookworm", ("ca-certificates",))
REDIS = Image(
    "localhost/stand-in/redis:7", f"{FOLDER}/redis/Dockerfile", (f"{FOLDER}/redis",), DEBIAN
)
TRAINER = Image(
    "localhost/stand-in/trainer:tf2.21",
    f"{FOLDER}/trainer/Dockerfile",
    (f"{FOLDER}/trainer",),
    catalogue.PYTHON,
)


@functools.cache
def built(image: Image) -> Built:
    """The image of this checkout; where none can be built the test is skipped."""
    reason = builder.unable()
    if not reason and not builder.folder().is_dir():
        reason = "none were ever built here. Mend: `make images` (minutes, once)"
    if reason:
        pytest.skip(f"no images: {reason}")
    return builder.build(image)


def give(cluster: Cluster, *wanted: Image) -> None:
    """Pods of this cluster can use these images (`imagePullPolicy: Never`)."""
    for image in wanted:
        archive = built(image).archive
        mark = Path(cluster.state) / f"{archive.name}.given"
        if not mark.exists():
            cluster.import_image(archive)
            mark.touch()
