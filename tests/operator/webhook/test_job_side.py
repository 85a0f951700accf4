"""What the webhook sets is what the job side reads, and what the gateway reads of the pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.gateway.tokenreview import identity_of
from stitch_operator.webhook import pieces
from stitch_operator.webhook.injection import owner
from stitchcore.inject import settings
from tests.operator.webhook import support

INJECT = Path(settings.__file__).parent


def environment(name: str) -> dict[str, str]:
    case = support.case(name)
    made = support.injected(case.given, case.situation, case.release)
    (container,) = made["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_the_job_side_reads_what_is_set() -> None:
    read = settings.read(environment("one_container"))
    assert read.gateway is not None
    assert (read.gateway.host, read.gateway.port) == ("stitch-gateway.stitch.svc", 8443)
    assert read.gateway.ca == f"{pieces.IDENTITY}/ca.pem"
    assert read.gateway.token_file == f"{pieces.IDENTITY}/token"
    assert read.gateway.server_name == ""
    assert (read.mode, read.cache_limit) == ("optimize", 2**30)
    assert read.public_keys == (bytes.fromhex("a" * 64),)
    assert settings.POD_CACHE == pieces.CACHE


def test_a_pod_that_resolves_no_names_gets_an_address() -> None:
    gateway = settings.read(environment("host_network")).gateway
    assert gateway is not None
    assert (gateway.host, gateway.server_name) == ("10.96.0.7", "stitch-gateway.stitch.svc")


def test_a_policys_fields_reach_the_job() -> None:
    read = settings.read(environment("policy_fields"))
    assert (read.baseline, read.control, read.guard) == (20, 0.05, 0.97)
    assert read.allow_unmeasured


def test_every_variable_is_one_that_the_job_side_names() -> None:
    text = (INJECT / "settings.py").read_text()
    for name in ("host_network", "policy_fields"):
        ours = {entry for entry in environment(name) if entry.startswith("STITCH_")}
        assert all(f"| {entry} |" in text for entry in ours)


def test_the_path_is_the_bootstraps() -> None:
    inside = Path(pieces.BOOTSTRAP).relative_to(pieces.RUNTIME)
    assert (INJECT.parent / inside / "sitecustomize.py").is_file()


def test_sessions_of_one_moment_differ() -> None:
    """Containers of one pod that start together share a cache folder."""
    read = [settings.read(environment("one_container")).session for _ in range(20)]
    assert len(set(read)) == 20


@pytest.mark.parametrize(
    "name", ["one_container", "generated_name", "workload_stamped", "burstable", "mig_and_claims"]
)
def test_the_gateway_names_the_workload_alike(name: str) -> None:
    case = support.case(name)
    before, after = pod(case.given), pod(case.expected)
    assert identity_of(after, {}).owner == owner(case.given)
    assert identity_of(after, {}).devices == identity_of(before, {}).devices


def pod(document: dict[str, Any]) -> Any:
    """A V1Pod as the client makes it of what the API server sends."""
    metadata = {"namespace": "team", "uid": "u", **document["metadata"]}
    api = client.ApiClient()
    return api._ApiClient__deserialize_model(  # type: ignore[attr-defined]
        {**document, "metadata": metadata}, client.V1Pod
    )
