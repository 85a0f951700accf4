"""A store behind HTTPS, under a real worker and a real signer: each has its own part of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stitchcore.artifact import package, sign
from tests.operator.store.serving import served
from tests.waiting import wait_for
from tests.worker.conftest import Cluster
from tests.worker.requests import submit, tiny_graph


@pytest.mark.slow
def test_a_graph_is_compiled_signed_and_found(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow", reason="make installs it: pip install tensorflow-cpu")
    place = tmp_path / "served"
    place.mkdir()
    with served(place) as server:
        there = dataclasses.replace(cluster, url=server.url)
        cluster.processes = there.processes
        for role, start in (("worker", there.worker), ("signer", there.signer)):
            for name, value in server.environment(role).items():
                monkeypatch.setenv(name, value)
            start()
        store = server.store("gateway")
        key = submit(store, tiny_graph())
        there.enqueue(key)

        def status() -> str:
            return str((store.read_answer(key) or {}).get("status"))

        wait_for(lambda: status() == "ready", "an answer")
        public = sign.public_hex(sign.load_or_create_key(there.folder / "key"))
        package.load(store, str((store.read_answer(key) or {})["key"]), public)
        signer = server.store("signer")
        wait_for(lambda: signer.list("unsigned") == (), "what is signed is removed")
        denied = server.metrics.registry.get_sample_value(
            "stitch_store_requests_total", {"role": "worker", "method": "PUT", "status": "403"}
        )
        assert denied is None, "the table gives each role what its program needs"
