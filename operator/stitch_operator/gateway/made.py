"""What artifacts make of steps, for the reconciler: a few figures of their manifests."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stitch_operator.metrics import OTHER, REFUSALS
from stitch_operator.reports import Graph, Made, Workloads
from stitchcore.artifact.store import Store
from stitchcore.errors import Refused
from stitchcore.inject.contract import MANIFEST


class _Manifest(msgspec.Struct, frozen=True):
    """Of a manifest no more than is told: one of another version is read as far as it has that."""

    expect: Made = Made()
    refusals: dict[str, int] = {}


def stored(store: Store, key: str) -> Made | None:
    """Of a published artifact; None where the store does not give it now."""
    try:
        data = store.read("artifacts", key, MANIFEST)
    except Refused:
        return None
    try:
        found = msgspec.json.decode(data, type=_Manifest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Made()  # jobs say bad_artifact of it
    left: dict[str, int] = {}
    for reason, count in found.refusals.items():
        word = reason if reason in REFUSALS else OTHER
        left[word] = left.get(word, 0) + count
    return msgspec.structs.replace(found.expect, left=left)


def with_made(page: Workloads, made: Mapping[str, Made]) -> Workloads:
    """The page with `made` of each graph whose artifact is known."""

    def told(graph: Graph) -> Graph:
        return msgspec.structs.replace(graph, made=made.get(graph.key))

    workloads = [
        msgspec.structs.replace(one, graphs=[told(graph) for graph in one.graphs])
        for one in page.workloads
    ]
    return msgspec.structs.replace(page, workloads=workloads)


def keys(page: Workloads) -> frozenset[str]:
    """Of artifacts that are named."""
    return frozenset(g.key for one in page.workloads for g in one.graphs if g.key)
