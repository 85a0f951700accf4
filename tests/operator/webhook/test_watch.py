"""What is known of the cluster: listed, watched, kept while the API server is away."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client

from stitch_operator import watch
from stitch_operator.gateway import tls
from stitch_operator.webhook.cluster import Cluster
from tests import lean
from tests.operator.webhook import handmade_api, support
from tests.operator.webhook.handmade_api import Api, named
from tests.operator.webhook.serving import NAMES, review
from tests.operator.webhook.test_app import KUBECONFIG
from tests.waiting import wait_for

POLICIES = "/apis/stitchcore.io/v1alpha1/stitchpolicies"
NAMESPACES = "/api/v1/namespaces"
LIMITS = "/api/v1/limitranges"
CRON_JOBS = "/apis/batch/v1/cronjobs"
CONFIG_MAPS = "/api/v1/namespaces/stitch/configmaps"
BREAKERS, TRUST = ((CONFIG_MAPS, f"metadata.name=stitch-{name}") for name in ("breakers", "trust"))
TRUSTED = {"ca.pem": support.CA, "public-keys": "a" * 64 + "\n"}


@pytest.fixture
def api() -> Iterator[Api]:
    with handmade_api.serve() as found:
        yield found


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def cluster(api: Api, failures: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(watch, "FIRST_PAUSE", 0.02)
    configuration = client.Configuration()
    configuration.host = api.url
    made = Cluster(client.ApiClient(configuration), "stitch", "stitch", failures.append)
    yield made
    made.stop()


def event(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": document}


def test_everything_is_listed_in_pages(api: Api, cluster: Cluster) -> None:
    api.page = 2
    api.at(POLICIES).items = [named("a", spec={"maxMode": "observe"})]
    labels = {"labels": {"x": "y"}}
    api.at(NAMESPACES).items = [named(f"n{i}", metadata=labels) for i in range(5)]
    lines = [{"type": "Container", "min": {"cpu": "1"}}]
    api.at(LIMITS).items = [named("l", "n1", spec={"limits": lines})]
    asked = {"annotations": {"stitchcore.io/optimize": "true", "other": "x"}}
    api.at(CRON_JOBS).items = [named("nightly", "n1", metadata=asked)]
    data = {"images": "n1 image:1\nn2 image:2\ngarbage\n", "workloads": "n1 train"}
    api.at(*BREAKERS).items = [named("stitch-breakers", "stitch", data=data)]
    api.at(*TRUST).items = [named("stitch-trust", "stitch", data=TRUSTED)]
    assert not cluster.ready()
    cluster.start()
    wait_for(cluster.ready)
    assert [one.spec.max_mode for one in cluster.policies()] == ["observe"]
    assert cluster.namespace("n4").labels == {"x": "y"}
    assert cluster.namespace("unknown").labels == {}
    assert [line.least["cpu"] for line in cluster.limit_ranges("n1")] == [1]
    assert list(cluster.limit_ranges("n2")) == []
    assert cluster.cron_job("n1", "nightly") == {"stitchcore.io/optimize": "true"}
    assert cluster.cron_job("n2", "nightly") == {}
    assert cluster.broken("n1") == {"image:1"} and cluster.failed("n1") == {"train"}
    assert cluster.broken("n3") == frozenset()
    assert cluster.trust() == support.TRUST
    selectors = [query.get("fieldSelector") for path, query in api.asked if path == CONFIG_MAPS]
    assert set(selectors) == {BREAKERS[1], TRUST[1]}


def test_trust_is_followed_and_stays_while_there_is_none(
    api: Api, cluster: Cluster, failures: list[str]
) -> None:
    cluster.start()
    wait_for(cluster.ready)
    assert cluster.trust() is None
    events = api.at(*TRUST).events
    events.put(event("ADDED", named("stitch-trust", "stitch", data=TRUSTED)))
    wait_for(lambda: cluster.trust() == support.TRUST)
    both = {**TRUSTED, "public-keys": "a" * 64 + "\n" + "b" * 64 + "\n"}
    events.put(event("MODIFIED", named("stitch-trust", "stitch", data=both)))
    wait_for(lambda: cluster.trust() == replace(support.TRUST, public_keys=("a" * 64, "b" * 64)))
    events.put(event("DELETED", named("stitch-trust", "stitch", data=both)))
    events.put(event("ADDED", named("stitch-trust", "stitch", data={"ca.pem": "nothing"})))
    wait_for(lambda: failures == ["configmaps"])
    assert cluster.trust() == replace(support.TRUST, public_keys=("a" * 64, "b" * 64))


def test_events_are_followed_from_the_version_of_the_list(api: Api, cluster: Cluster) -> None:
    cluster.start()
    wait_for(cluster.ready)
    events = api.at(POLICIES).events
    events.put(event("ADDED", named("a", version="9", spec={"maxMode": "off"})))
    wait_for(cluster.policies)
    events.put(event("MODIFIED", named("a", version="10", spec={"maxMode": "observe"})))
    wait_for(lambda: cluster.policies()[0].spec.max_mode == "observe")
    events.put(event("BOOKMARK", {"metadata": {"resourceVersion": "12"}}))
    events.put(None)  # the server ends the watch; the next one goes on from 12
    wait_for(lambda: versions(api) == ["7", "12"])
    assert len(cluster.policies()) == 1
    events.put(event("DELETED", named("a", version="13")))
    wait_for(lambda: not cluster.policies())


def versions(api: Api) -> list[str]:
    """Of the watches of policies, where they began."""
    asked = [query for path, query in api.asked if path == POLICIES and "watch" in query]
    return [query["resourceVersion"] for query in asked]


def test_a_watch_that_is_too_old_lists_anew(
    api: Api, cluster: Cluster, failures: list[str]
) -> None:
    held = api.at(POLICIES)
    held.items = [named("gone")]
    cluster.start()
    wait_for(cluster.ready)
    held.items, api.version = [named("new")], 20
    held.events.put(event("ERROR", {"kind": "Status", "code": 410}))
    wait_for(lambda: [one.name for one in cluster.policies()] == ["new"])
    wait_for(lambda: versions(api) == ["7", "20"])
    assert failures == []


def test_a_page_that_is_too_old_lists_anew(api: Api, cluster: Cluster, failures: list[str]) -> None:
    api.at(POLICIES).status = 410
    cluster.start()
    wait_for(lambda: len([path for path, _ in api.asked if path == POLICIES]) > 2)
    api.at(POLICIES).status = 200
    wait_for(cluster.ready)
    assert failures == []


def test_what_was_seen_is_served_while_the_api_server_is_away(
    api: Api, cluster: Cluster, failures: list[str]
) -> None:
    held = api.at(POLICIES)
    held.items = [named("kept")]
    cluster.start()
    wait_for(cluster.ready)
    held.status = 503
    held.events.put(event("ERROR", {"kind": "Status", "code": 500, "message": "away"}))
    wait_for(lambda: failures.count("stitchpolicies") >= 3)
    assert [one.name for one in cluster.policies()] == ["kept"] and cluster.ready()
    held.status, held.items = 200, [named("back")]
    wait_for(lambda: [one.name for one in cluster.policies()] == ["back"])


def test_without_the_crd_there_are_no_policies(api: Api, cluster: Cluster) -> None:
    api.at(POLICIES).status = 404
    cluster.start()
    wait_for(cluster.ready)
    assert list(cluster.policies()) == []
    api.at(POLICIES).items, api.at(POLICIES).status = [named("a")], 200
    wait_for(cluster.policies)


def test_a_policy_that_makes_no_sense_changes_nothing(
    api: Api, cluster: Cluster, failures: list[str]
) -> None:
    api.at(POLICIES).items = [named("a", spec={"maxMode": "observe"}), named("b", spec=5)]
    cluster.start()
    wait_for(cluster.ready)
    events = api.at(POLICIES).events
    events.put(event("MODIFIED", named("a", spec={"maxMode": "everything"})))
    wait_for(lambda: failures.count("stitchpolicies") == 2)
    assert [one.spec.max_mode for one in cluster.policies()] == ["observe"]


def test_not_ready_until_every_watch_has_listed(api: Api, cluster: Cluster) -> None:
    api.at(LIMITS).status = 403
    cluster.start()
    wait_for(lambda: cluster.policies() == [] and len(api.asked) > 8)
    assert not cluster.ready()
    api.at(LIMITS).status = 200
    wait_for(cluster.ready)


@pytest.mark.slow
def test_the_whole_process_from_start_to_sigterm(api: Api, tmp_path: Path) -> None:
    api.at(*TRUST).items = [named("stitch-trust", "stitch", data=TRUSTED)]
    tls.make(tmp_path, NAMES)
    (tmp_path / "release.json").write_text(json.dumps(support.RELEASE))
    place = {"name": "c", "cluster": {"server": api.url}}
    (tmp_path / "config").write_text(json.dumps({**KUBECONFIG, "clusters": [place]}))
    options = {
        "--release": "release.json", "--certificate": "gateway.pem", "--kubeconfig": "config",
        "--certificate-key": "gateway.key",
    }  # fmt: skip
    given = [word for name, file in options.items() for word in (name, str(tmp_path / file))]
    given += ["--host", "127.0.0.1", "--port", "0", "--metrics-host", "127.0.0.1"]
    command = [sys.executable, "-m", "stitch_operator.webhook", *given, "--metrics-port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(lean.SOURCES)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        try:
            _judge(process, tmp_path)
        finally:
            process.kill()


def _judge(process: subprocess.Popen[str], folder: Path) -> None:
    assert process.stderr is not None
    url = next(line for line in process.stderr if "webhook on https" in line).split()[-1]
    trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with httpx.Client(base_url=url, verify=trust) as asking:

        def ready() -> bool:
            try:
                return asking.get("/readyz").status_code == 200
            except httpx.ConnectError:
                return False

        wait_for(ready)
        case = support.case("one_container")
        found = asking.post("/mutate/pods", json=review(case.given)).json()
    assert found["response"]["patchType"] == "JSONPatch"
    process.terminate()
    assert process.wait(120) in (0, -15)
    assert "Traceback" not in process.stderr.read()
