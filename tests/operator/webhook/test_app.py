"""Reviews over HTTPS: answered as the API server wants it, and always allowed."""

from __future__ import annotations

import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonpatch
import pytest

from stitch_operator.webhook import app
from stitch_operator.webhook.policy import Namespace
from tests import lean
from tests.operator.webhook import serving, support
from tests.operator.webhook.serving import Served, review
from tests.waiting import RUN_SECONDS

CASE = support.case("one_container")
SKIPPED = support.case("two_containers").given


class Broken(support.Plain):
    """Surroundings that raise, as a bug of ours would."""

    def namespace(self, name: str) -> Namespace:
        raise RuntimeError("canary")

    def cron_job(self, namespace: str, name: str) -> dict[str, str]:
        raise RuntimeError("canary")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving.serve(tmp_path_factory.mktemp("served")) as found:
        yield found


def response(served: Served, document: Any, path: str = "pods") -> dict[str, Any]:
    with served.client() as client:
        answered = client.post(f"/mutate/{path}", json=document)
    assert answered.status_code == 200
    found = answered.json()
    assert found["apiVersion"] == "admission.k8s.io/v1"
    assert found["kind"] == "AdmissionReview"
    assert found["response"]["allowed"] is True
    return dict(found["response"])


def patched(document: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    assert found["patchType"] == "JSONPatch"
    operations = json.loads(base64.b64decode(found["patch"]))
    return dict(jsonpatch.apply_patch(copy.deepcopy(document), operations))


def test_a_pod_is_injected(served: Served) -> None:
    before = served.count("stitch_injections_total", result="injected", reason="")
    found = response(served, review(CASE.given))
    assert found["uid"] == "uid-1"
    assert support.plain(patched(CASE.given, found)) == CASE.expected
    assert "warnings" not in found
    assert found["auditAnnotations"] == {"outcome": "injected"}
    assert served.count("stitch_injections_total", result="injected", reason="") == before + 1
    assert served.count("stitch_webhook_duration_seconds_count", hook="pods") >= 1


def test_a_skipped_pod_is_warned_of(served: Served) -> None:
    labels = {"result": "skipped", "reason": "ambiguous_container"}
    before = served.count("stitch_injections_total", **labels)
    found = response(served, review(SKIPPED))
    assert patched(SKIPPED, found)["metadata"]["annotations"]["stitchcore.io/skipped"]
    (warning,) = found["warnings"]
    assert "ambiguous_container" in warning and len(warning) <= 256
    assert served.count("stitch_injections_total", **labels) == before + 1


def test_a_warning_is_as_long_as_the_api_server_takes(served: Served) -> None:
    names = [letter * 63 for letter in "abcd"]
    spec = {"containers": [{"name": name, "image": "x"} for name in names]}
    (warning,) = response(served, review({**SKIPPED, "spec": spec}))["warnings"]
    assert len(warning) == 256


def test_who_did_not_ask_gets_no_patch_and_no_warning(served: Served) -> None:
    found = response(served, review(support.case("nobody_asks").given))
    assert set(found) == {"uid", "allowed", "auditAnnotations"}


def test_a_dry_run_is_answered_alike_and_not_counted(served: Served) -> None:
    real = response(served, review(CASE.given))
    before = served.count("stitch_injections_total", result="injected", reason="")
    assert response(served, review(CASE.given, dryRun=True)) == real
    assert served.count("stitch_injections_total", result="injected", reason="") == before


@pytest.mark.parametrize(
    "known",
    [support.Plain(trusted=support.TRUST), support.Plain(), Broken(trusted=support.TRUST)],
    ids=["injected", "not ready", "failed"],
)
def test_no_dry_run_is_counted_whatever_becomes_of_it(known: support.Plain, tmp_path: Path) -> None:
    owner = {"kind": "CronJob", "name": "n", "controller": True}
    metadata = {**CASE.given["metadata"], "ownerReferences": [owner]}
    job = {"metadata": metadata, "spec": {"template": {"spec": {}}}}
    with serving.serve(tmp_path, known) as served:

        def counted() -> float:
            found = [one for family in served.metrics.registry.collect() for one in family.samples]
            names = ("stitch_injections_total", "stitch_stamps_total")
            return sum(one.value for one in found if one.name in names)

        for dry in (True, False):
            assert counted() == 0
            response(served, review(CASE.given, dryRun=dry))
            response(served, review(job, "batch", "Job", dryRun=dry), "workloads")
        assert counted() == 2


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
@pytest.mark.parametrize("path", ["pods", "workloads"])
def test_nothing_but_create_is_changed(served: Served, operation: str, path: str) -> None:
    job = {"metadata": CASE.given["metadata"], "spec": {"template": {"spec": {}}}}
    of_pods = review(CASE.given, operation=operation)
    asked = of_pods if path == "pods" else review(job, "batch", "Job", operation=operation)
    assert response(served, asked, path) == {"uid": "uid-1", "allowed": True}


def test_a_workload_is_stamped(served: Served) -> None:
    job = {"metadata": CASE.given["metadata"], "spec": {"template": {"spec": {}}}}
    before = served.count("stitch_stamps_total", result="stamped")
    found = response(served, review(job, "batch", "Job"), "workloads")
    annotations = patched(job, found)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["stitchcore.io/workload"] == "train"
    assert served.count("stitch_stamps_total", result="stamped") == before + 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", json.dumps({**review({}), "apiVersion": "admission.k8s.io/v1beta1"}),
     json.dumps(review({}) | {"request": {"uid": "x"}}), b"\xff\xfe", b"[" * 10_000,
     json.dumps(review({}) | {"kind": "Pod"})],
    ids=["empty", "cut", "list", "no-fields", "v1beta1", "no-object", "not-utf8", "deep", "kind"],
)  # fmt: skip
def test_what_is_no_review_is_told_so(served: Served, body: bytes | str) -> None:
    before = served.count("stitch_webhook_malformed_total")
    with served.client() as client:
        answered = client.post("/mutate/pods", content=body)
    assert answered.status_code == 400
    assert served.count("stitch_webhook_malformed_total") == before + 1


def test_a_body_without_end_is_cut_off(served: Served) -> None:
    with served.client() as client:
        answered = client.post("/mutate/pods", content=b"x" * (app.BODY_BYTES + 1))
        assert answered.status_code == 413
        assert client.get("/mutate/pods").status_code == 405


@pytest.mark.parametrize(
    "wrong",
    [{"spec": None}, {"spec": {"containers": [{}]}}, {"metadata": 5}, {"spec": {"containers": 1}}],
    ids=["no-spec", "no-name", "number", "no-list"],
)
def test_a_pod_that_makes_no_sense_passes(served: Served, wrong: dict[str, Any]) -> None:
    """The API server has validated none of it yet where other webhooks changed it."""
    response(served, review({**CASE.given, **wrong}))
    response(served, review({**CASE.given, **wrong}, "batch", "Job"), "workloads")


def test_a_job_inherits_from_the_cron_job_that_made_it_alone(tmp_path: Path) -> None:
    nightly = {"stitchcore.io/mode": "off", "stitchcore.io/optimize": "true"}
    known = support.Plain(trusted=support.TRUST, cron_jobs={("team", "n"): nightly})
    with serving.serve(tmp_path, known) as served:
        for kind, made, stamped in (
            ("CronJob", True, True), ("CronJob", False, False), ("Job", True, False),
        ):  # fmt: skip
            owner = {"kind": kind, "name": "n", "controller": made}
            job = {"metadata": {"name": "n-1", "ownerReferences": [owner]},
                   "spec": {"template": {"spec": {}}}}  # fmt: skip
            found = response(served, review(job, "batch", "Job"), "workloads")
            assert ("patch" in found) == stamped


def test_a_failure_of_ours_lets_the_pod_pass(tmp_path: Path) -> None:
    with serving.serve(tmp_path, Broken(trusted=support.TRUST)) as broken:
        found = response(broken, review(CASE.given))
        assert "patch" not in found
        assert "internal" in found["warnings"][0] and "canary" not in str(found)
        labels = {"result": "error", "reason": "internal"}
        assert broken.count("stitch_injections_total", **labels) == 1
        owner = {"kind": "CronJob", "name": "n", "controller": True}
        job = {"metadata": {"ownerReferences": [owner]}}
        response(broken, review(job, "batch", "Job"), "workloads")
        assert broken.count("stitch_stamps_total", result="error") == 1
        assert broken.client().get("/healthz").status_code == 200


def test_before_policies_are_known_nothing_is_injected(tmp_path: Path) -> None:
    with serving.serve(tmp_path, support.Plain(known=False, trusted=support.TRUST)) as early:
        found = response(early, review(CASE.given))
        assert "patch" not in found and "not_ready" in found["warnings"][0]
        ready = early.client().get("/readyz")
        assert ready.status_code == 503 and "policies" in ready.text


def test_before_trust_is_known_nothing_is_injected(tmp_path: Path) -> None:
    with serving.serve(tmp_path, support.Plain()) as early:
        found = response(early, review(CASE.given))
        assert "patch" not in found and "not_ready" in found["warnings"][0]
        ready = early.client().get("/readyz")
        assert ready.status_code == 503 and "trust" in ready.text


def test_ready_is_a_handshake_with_the_present_certificate(served: Served) -> None:
    assert served.client().get("/readyz").text == "ready\n"


def test_it_may_be_asked_by_url_alone(served: Served) -> None:
    """`clientConfig.url` with `caBundle`: a name of the certificate, and TLS."""
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/healthz")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{served.port}/healthz")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"--release": "{}/nope"}, "No such file"),
        ({"--release": "{}/empty.json"}, "--release"),
        ({"--release": "{}/image.json"}, "image"),
        ({"--kubeconfig": "{}/nope"}, "kube"),
        ({"--port": "99999"}, "65535"),
        ({"--metrics-host": "203.0.113.7"}, "203.0.113.7"),
    ],
    ids=["no-release", "empty-release", "no-image", "no-kubeconfig", "port", "metrics"],
)
def test_what_cannot_start_says_so(change: dict[str, str], why: str, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "image.json").write_text(json.dumps({**support.RELEASE, "image": ""}))
    (tmp_path / "release.json").write_text(json.dumps(support.RELEASE))
    (tmp_path / "config").write_text(json.dumps(KUBECONFIG))
    options = {
        "--release": "{}/release.json", "--certificate": "{}/a", "--certificate-key": "{}/b",
        "--kubeconfig": "{}/config", "--host": "127.0.0.1", "--port": "0",
        "--metrics-host": "127.0.0.1", "--metrics-port": "0", **change,
    }  # fmt: skip
    given = [word.format(tmp_path) for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "stitch_operator.webhook", *given]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(lean.SOURCES)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert why in done.stderr and "Traceback" not in done.stderr


KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "current-context": "c",
}
