"""`python -m stitch_operator.check`: would an annotated pod be injected, and reach its gateway?

What `helm test` runs. A pod is created as a dry run, so none is made; from what comes back follows
which gateway and authority a job would be given, and a handshake with that gateway is tried. An
install is not ready at once, so it asks until it likes the answer or its time is over.
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from stitch_operator import names
from stitch_operator.webhook.reasons import Reason
from stitchcore.service import startup
from stitchcore.service.startup import needed

EVERY_SECONDS, CALL_SECONDS = 2.0, 10.0
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "stitch-check-", "annotations": {names.OPTIMIZE: "true"}},
    "spec": {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "train",
                "image": "example.invalid/train:1",
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}
"""Nothing about it is in the way of being injected, or of the Pod Security standard restricted."""


@dataclass(frozen=True)
class Answer:
    """`good` or not, and what to tell."""

    good: bool
    text: str


def judged(pod: Mapping[str, Any]) -> Answer:
    """What became of the pod."""
    words = (pod.get("metadata") or {}).get("annotations") or {}
    if names.INJECTED in words:
        return Answer(True, f"it would be injected: {words[names.INJECTED]}")
    if names.WOULD_INJECT in words:
        containers = words[names.WOULD_INJECT]
        return Answer(True, f"the policy's mode is dryRun; it would inject into {containers}")
    if names.SKIPPED in words:
        reason = str(words[names.SKIPPED])
        found = Reason.__members__.get(reason.upper())
        mend = f": {found.value.why}; {found.value.mend}" if found else ""
        return Answer(False, f"it would be left as it is, {reason}{mend}")
    return Answer(
        False,
        "the webhook was not asked, or did not answer: see the MutatingWebhookConfiguration "
        "(has it a caBundle?), the webhook's pods, and whether the API server reaches port 9443",
    )


def gateway_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """The gateway that the pod is told, and the authority it trusts for it."""
    authority = pod["metadata"].get("annotations", {}).get(names.GATEWAY_CA)
    for container in pod["spec"]["containers"]:
        for entry in container.get("env") or ():
            if entry["name"] == "STITCH_GATEWAY" and authority:
                return entry["value"], authority
    return None


def reached(url: str, authority: str) -> Answer:
    """Whether the gateway answers whoever trusts this authority alone."""
    parts = urlsplit(url)
    try:
        trust = ssl.create_default_context(cadata=authority)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=CALL_SECONDS, context=trust
        )
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(False, f"the gateway at {url} does not answer: {error!r}")
    return Answer(status == 200, f"the gateway at {url} answers {status}")


def ask(create: Callable[[], Mapping[str, Any]]) -> list[Answer]:
    """One round: the pod, then its gateway."""
    try:
        pod = create()
    except ApiException as error:
        return [Answer(False, f"no pod may be created there: {error.status} {error.reason}")]
    except (HTTPError, OSError) as error:
        return [Answer(False, f"the API server cannot be asked: {type(error).__name__}")]
    first = judged(pod)
    gateway = gateway_of(pod) if first.good else None
    return [first, reached(*gateway)] if gateway else [first]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all is well, 1 when it is not within the time, 2 where it cannot ask."""
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.check")
    parser.add_argument("--namespace", default="default", help="where the pod would be; not ours")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to go on asking")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own account")
    given = parser.parse_args(arguments)
    return startup.guarded("check", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    with needed("the API server", "run it in a pod, or give --kubeconfig", ConfigException):
        if given.kubeconfig is None:
            config.load_incluster_config()
        else:
            config.load_kube_config(str(given.kubeconfig))
    api = client.ApiClient()

    def create() -> Mapping[str, Any]:
        made = client.CoreV1Api(api).create_namespaced_pod(
            given.namespace, POD, dry_run="All", _request_timeout=CALL_SECONDS
        )
        found: Mapping[str, Any] = api.sanitize_for_serialization(made)
        return found

    until = time.monotonic() + given.seconds
    while True:
        answers = ask(create)
        if good := all(answer.good for answer in answers):
            break
        if time.monotonic() + EVERY_SECONDS > until:
            break
        time.sleep(EVERY_SECONDS)
    for answer in answers:
        print("ok  " if answer.good else "FAIL", answer.text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
