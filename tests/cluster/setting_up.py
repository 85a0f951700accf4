"""Images built and given to a node, and the charts installed: the first minutes of the demo."""

from __future__ import annotations

import time
from collections.abc import Callable

from images import catalogue
from images.builder import Built
from images.catalogue import Image
from tests.cluster import own_images
from tests.cluster.cluster import Cluster
from tests.cluster.whole import NAMESPACE, Whole

IMAGES = (*catalogue.default(), own_images.REDIS, own_images.TRAINER)


def set_up(cluster: Cluster, tell: Callable[[str], None], build: Callable[[Image], Built]) -> Whole:
    """The product in this cluster, ready to take jobs. Raises NotUp, and what `build` does."""
    for image in IMAGES:
        began = time.monotonic()
        built = build(image)
        own_images.give(cluster, image)
        size = built.archive.stat().st_size / 1e6
        tell(f"image {image.name}: {size:.0f} MB, {time.monotonic() - began:.0f} s")
    whole = Whole(cluster, own_images.TRAINER.name)
    whole.prepare()
    tell("helm install stitch-crds, stitch")
    whole.install()
    pods = whole.cluster.kubectl("get", "pods", "--namespace", NAMESPACE)
    tell(f"installed:\n{pods}")
    return whole
