"""The controllers of other projects, as processes: JobSet, Kueue, Kubeflow's two trainers.

Their CRDs and webhook configurations are their own; of Volcano there is the CRD alone. The API
server reaches them by Services that are names of this machine (ExternalName), under which their
certificates are checked as in a real installation. Each has a /tmp of its own, where it looks for
its certificate.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

from tests.cluster import parts, processes
from tests.cluster.parts import JOBSET, KUEUE, TRAINER, TRAINING_OPERATOR, VOLCANO, Release
from tests.cluster.processes import Daemon
from tests.ports import free_ports

SECONDS = 600.0
CERTIFICATES = Path("k8s-webhook-server/serving-certs")
"""Below /tmp: where controller-runtime looks."""
OWN_TMP = 'mount --bind "$0" /tmp && exec "$@"'
PORTS = "controllers.json"
Object = dict[str, Any]


@dataclass(frozen=True)
class Controller:
    """One of them. `prefix` and `renamed` are what its installation makes of its objects' names."""

    program: str
    release: Release
    namespace: str
    service: str
    secret: str
    prefix: str = ""
    renamed: str = ""
    flags: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None


def _settings(group: str, **more: Any) -> Object:
    leaders = {"leaderElection": {"leaderElect": False}}
    own = {"internalCertManagement": {"enable": True}, "metrics": {"bindAddress": "0"}}
    kind = {"apiVersion": f"config.{group}", "kind": "Configuration"}
    return {**kind, **leaders, **own, "clientConnection": {"qps": 500, "burst": 500}, **more}


FRAMEWORKS = ("batch/job", "jobset.x-k8s.io/jobset", "kubeflow.org/tfjob", "pod",
              "trainer.kubeflow.org/trainjob")  # fmt: skip
CONTROLLERS = (
    Controller(
        *("jobset", JOBSET, "jobset-system", "jobset-webhook-service"),
        "jobset-webhook-server-cert",
        prefix="jobset-",
        settings=_settings("jobset.x-k8s.io/v1alpha1"),
    ),
    Controller(
        *("kueue", KUEUE, "kueue-system", "kueue-webhook-service", "kueue-webhook-server-cert"),
        prefix="kueue-",
        flags=("--feature-gates=VisibilityOnDemand=false",),
        settings=_settings("kueue.x-k8s.io/v1beta1", integrations={"frameworks": list(FRAMEWORKS)}),
    ),
    Controller(
        *("trainer-controller-manager", TRAINER, "kubeflow-system"),
        *("kubeflow-trainer-controller-manager", "kubeflow-trainer-webhook-cert"),
        renamed="validator.trainer.kubeflow.org",
    ),
    Controller(
        *("training-operator.v1", TRAINING_OPERATOR, "kubeflow"),
        *("training-operator", "training-operator-webhook-cert"),
        renamed="validator.training-operator.kubeflow.org",
        flags=("--enable-scheme=tfjob", "--metrics-bind-address=0"),
    ),
)


@dataclass(frozen=True)
class Ports:
    webhook: int
    health: int


def write(state: Path) -> None:
    """Their ports and settings, below `state`."""
    free = iter(free_ports(2 * len(CONTROLLERS)))
    ports = {one.program: [next(free), next(free)] for one in CONTROLLERS}
    (state / PORTS).write_text(json.dumps(ports))
    for one in CONTROLLERS:
        (_tmp(state, one) / CERTIFICATES).mkdir(parents=True)
        if one.settings is not None:
            own = _ports(state)[one.program]
            health = {"healthProbeBindAddress": f"127.0.0.1:{own.health}"}
            settings = {**one.settings, "webhook": {"port": own.webhook}, "health": health}
            (_tmp(state, one) / "config.json").write_text(json.dumps(settings))


def daemons(state: Path) -> tuple[Daemon, ...]:
    return tuple(Daemon(one.program, _command(state, one)) for one in CONTROLLERS)


def objects(state: Path) -> Iterator[Object]:
    """Everything that is to be created before they start: first the CRDs."""
    found = [(one, document) for one in CONTROLLERS for document in _documents(one.release)]
    for document in [*(document for _, document in found), *_documents(VOLCANO)]:
        if document["kind"] == "CustomResourceDefinition":
            yield document
    for one in CONTROLLERS:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one.namespace}}
        metadata = {"name": one.service, "namespace": one.namespace}
        here = {"type": "ExternalName", "externalName": "localhost"}
        yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": here}
        metadata = {"name": one.secret, "namespace": one.namespace}
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    for one, document in found:
        if document["kind"].endswith("WebhookConfiguration"):
            yield _installed(document, one, _ports(state)[one.program].webhook)


def await_ready(state: Path, api: client.ApiClient) -> None:
    """Ready when each says so: its webhooks are served and its caches are filled."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for one in CONTROLLERS:
        made = _certified(api, one)
        data = processes.await_ready(state, [one.program], made, SECONDS, one.secret)
        for name, value in data.items():  # as a kubelet would: it waits for them
            (_tmp(state, one) / CERTIFICATES / name).write_bytes(base64.b64decode(value))
    for one in CONTROLLERS:
        url = f"http://127.0.0.1:{_ports(state)[one.program].health}/readyz"
        ready = _answers(direct, url)
        processes.await_ready(state, [one.program], ready, SECONDS, one.program)


def _certified(api: client.ApiClient, one: Controller) -> Callable[[], Mapping[str, str]]:
    """Its Secret's data: it makes its certificates itself."""
    read = client.CoreV1Api(api).read_namespaced_secret
    return lambda: read(one.secret, one.namespace).data or {}


def _answers(direct: urllib.request.OpenerDirector, url: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            direct.open(url, timeout=5).close()
        except OSError:
            return False
        return True

    return ready


def _tmp(state: Path, one: Controller) -> Path:
    return state / one.program


def _ports(state: Path) -> dict[str, Ports]:
    document = json.loads((state / PORTS).read_text())
    return {name: Ports(*ports) for name, ports in document.items()}


def _command(state: Path, one: Controller) -> tuple[str, ...]:
    ports = _ports(state)[one.program]
    flags = [f"--kubeconfig={state / 'admin.conf'}", *one.flags]
    if one.settings is not None:
        flags.append("--config=/tmp/config.json")
    else:
        flags.append(f"--webhook-server-port={ports.webhook}")
        flags.append(f"--health-probe-bind-address=127.0.0.1:{ports.health}")
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    within = ["unshare", "--mount", *root, "sh", "-c", OWN_TMP, str(_tmp(state, one))]
    return (*within, str(parts.program(one.program)), *flags)


def _documents(release: Release) -> Iterator[Object]:
    for file in sorted(release.kept.glob("*.yaml")):
        yield from (one for one in yaml.safe_load_all(file.read_text()) if one)


def _installed(document: Object, one: Controller, port: int) -> Object:
    """A webhook configuration as their kustomization installs it, at this machine's port."""
    name = one.renamed or f"{one.prefix}{document['metadata']['name']}"
    service = {"name": one.service, "namespace": one.namespace, "port": port}
    hooks = []
    for hook in document["webhooks"]:
        made = {**hook, "clientConfig": {"service": {**hook["clientConfig"]["service"], **service}}}
        hooks.append({**made, **_narrowed(one, hook)})
    return {**document, "metadata": {"name": name}, "webhooks": hooks}


def _narrowed(one: Controller, hook: Object) -> Object:
    """The patches of config/components/webhook: whose pods are asked about."""
    if "pods" not in hook["rules"][0]["resources"]:
        return {}
    if one.release is JOBSET:
        word = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
        return {"objectSelector": {"matchExpressions": [word]}}
    never = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
    own = {**never, "values": ["kube-system", one.namespace]}
    return {"namespaceSelector": {"matchExpressions": [own]}}
