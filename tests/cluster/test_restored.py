"""A release's keys as docs/service.md backs them up: lost with everything, restored, and taken up
by the reconciler as they were. The ledger's drill is tests/operator/gateway/test_copy.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_operator import keys
from tests.cluster.cluster import Cluster
from tests.cluster.test_trust import Kept, release_in

pytestmark = pytest.mark.cluster
MADE = "app.kubernetes.io/managed-by=stitchcore-reconciler"
OF_THE_STORE = ("signing", "kernel-key", "ca", "broker")


@pytest.fixture
def kept(own_cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Kept]:
    with release_in(own_cluster, namespace, tmp_path) as made:
        yield made


def test_keys_come_back_and_are_taken_up(kept: Kept, own_cluster: Cluster) -> None:
    kept.step()
    where = ("-n", kept.release.namespace)
    found = own_cluster.kubectl("get", "secrets", *where, "-l", MADE, "-o", "json")
    assert "ownerReferences" in found, "or the drill shows nothing"
    backup = json.dumps(keys.plain(json.loads(found)))
    before = {what: kept.data(what) for what in OF_THE_STORE}
    trusted = kept.trusted()
    own_cluster.kubectl("delete", "secrets", *where, "-l", MADE)
    own_cluster.kubectl("delete", "configmap", *where, f"{kept.release.name}-trust")
    own_cluster.kubectl("create", "-f", "-", stdin=backup)
    kept.step()
    assert {what: kept.data(what) for what in OF_THE_STORE} == before
    assert kept.trusted() == trusted, "no job has to trust anything else"
    owned = json.loads(own_cluster.kubectl("get", "secrets", *where, "-l", MADE, "-o", "json"))
    owners = [one["metadata"].get("ownerReferences") for one in owned["items"]]
    again = json.loads(found)["items"]
    assert owners == [one["metadata"].get("ownerReferences") for one in again]


def test_what_is_no_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="no Secrets"):
        keys.plain({"kind": "List", "items": [{"kind": "ConfigMap"}]})
