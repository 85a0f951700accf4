"""A release's gateway and reconciler as processes against a real API server, and jobs for them.

Both run under tokens of service accounts with the roles that the code asks for, and nothing more.
Pods run nowhere: their status is written as a kubelet would, and what a job tells the gateway is
told over HTTPS with the pod's own token.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from kubernetes import client

from stitch_operator.gateway import tls
from stitch_operator.names import AUDIENCE
from stitch_operator.reconciler import objects
from stitch_operator.webhook.injection import Situation, decide
from stitch_operator.webhook.objects import trust_roles
from stitch_operator.webhook.policy import Namespace
from stitch_operator.webhook.release import Release
from tests.operator.gateway import processes
from tests.operator.webhook import support
from tests.ports import free_port
from tests.waiting import wait_for

GROUP, VERSION, PLURAL = "stitchcore.io", "v1alpha1", "stitchedjobs"
OPTIMIZE = "stitchcore.io/optimize"
ACCOUNT = "stitch-reconciler"
IMAGE = "registry.example.com/stitch/runtime:1.2.3"
TRAINS = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "tf"}]}
Object = dict[str, Any]


@dataclass
class Place:
    """A release that is installed: its settings, and files of its processes."""

    api: client.ApiClient
    release: Release
    folder: Path
    server: str
    broker: str

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    def kubeconfig(self, namespace: str, account: str) -> Path:
        """For a service account, by a token of its own."""
        body = {"spec": {"expirationSeconds": 3600}}
        made = self.core.create_namespaced_service_account_token(account, namespace, body)
        cluster = {"server": self.server, "certificate-authority": str(self.folder / "api-ca.pem")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": made.status.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.folder / f"{namespace}-{account}.conf"
        path.write_text(yaml.safe_dump(document))
        return path

    def token(self, namespace: str, pod: Any) -> str:
        """As the kubelet projects it into a pod."""
        about = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name,
                 "uid": pod.metadata.uid}  # fmt: skip
        spec = {"audiences": [AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": about}
        account = pod.spec.service_account_name
        made = self.core.create_namespaced_service_account_token(account, namespace, {"spec": spec})
        return str(made.status.token)

    # Processes

    @contextlib.contextmanager
    def gateway(self, port: int = 0) -> Iterator[Gateway]:
        port = port or free_port()
        command = [
            *(sys.executable, "-m", "stitch_operator.gateway"),
            *("--store", str(self.folder / "store"), "--broker", self.broker),
            *("--ledger", str(self.folder / "ledger.sqlite")),
            *("--certificate", str(self.folder / "gateway.pem")),
            *("--certificate-key", str(self.folder / "gateway.key")),
            *("--kubeconfig", str(self.folder / "admin.conf")),
            *("--reader", f"{self.release.namespace}/{ACCOUNT}"),
            *("--port", str(port), "--metrics-port", str(free_port())),
        ]
        url = f"https://localhost:{port}"
        (self.folder / "gateway.url").write_text(url)
        with processes.started(command, self.folder / "gateway.log") as process:
            made = Gateway(self, url, process)
            wait_for(made.ready, "the gateway is ready")
            yield made

    @contextlib.contextmanager
    def reconciler(
        self, *arguments: str, url: str = "https://localhost:1", paths: str = ""
    ) -> Iterator[Running]:
        """Under its own account, for the gateway at `url`; of other sources, at `paths`."""
        metrics = free_port()
        account = self.kubeconfig(self.release.namespace, ACCOUNT)
        command = [
            *(sys.executable, "-m", "stitch_operator.reconciler"),
            *("--release", str(self.folder / "release.json"), "--gateway", url),
            *("--ca", str(self.folder / "ca.pem"), "--token-file", str(self.folder / "token")),
            *("--kubeconfig", str(account)),
            *("--metrics-host", "127.0.0.1", "--metrics-port", str(metrics)),
            *arguments,
        ]
        sources = {"PYTHONPATH": paths} if paths else {}
        with processes.started(command, self.folder / "reconciler.log", sources) as process:
            made = Running(process, f"http://127.0.0.1:{metrics}", self.folder / "reconciler.log")
            wait_for(made.healthy, "the reconciler is up")
            yield made
            made.end()


@dataclass(frozen=True)
class Running:
    """A reconciler."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def end(self) -> None:
        """It gives its lease back, for which the next one would wait 15 seconds."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed then
            self.process.wait(120)

    def healthy(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/healthz", trust_env=False).status_code == 200
        return False

    def metric(self, line: str) -> float:
        """The value of a metric, with its labels as they are printed; 0 where it is not there."""
        for text in httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines():
            if text.startswith(f"{line} "):
                return float(text.rpartition(" ")[2])
        return 0.0


@dataclass(frozen=True)
class Gateway:
    """A gateway that asks the API server who asks."""

    place: Place
    url: str
    process: subprocess.Popen[bytes]

    def ready(self) -> bool:
        assert self.process.poll() is None, (self.place.folder / "gateway.log").read_text()[-2000:]
        with contextlib.suppress(httpx.HTTPError), self.client("nobody") as asked:
            return asked.get("/readyz").status_code == 200
        return False

    def client(self, token: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            verify=tls.trusting(self.place.folder / "ca.pem"),
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=100.0,
        )


@contextlib.contextmanager
def installed(api: client.ApiClient, kubeconfig: Path, folder: Path) -> Iterator[Place]:
    """A release in a namespace of its own: CRD, roles, accounts, certificates; a broker."""
    core = client.CoreV1Api(api)
    namespace = f"stitch-{time.monotonic_ns() % 10**9}"
    core.create_namespace({"metadata": {"name": namespace}})
    given = {"namespace": namespace, "image": IMAGE, "certificates": {"mode": "existing"}}
    release = support.release(**given)
    (folder / "release.json").write_text(json.dumps({**support.RELEASE, **given}))
    tls.make(folder, ["localhost", "127.0.0.1"])
    (folder / "store").mkdir()
    (folder / "api-ca.pem").write_bytes(Path(api.configuration.ssl_ca_cert).read_bytes())
    (folder / "admin.conf").write_bytes(kubeconfig.read_bytes())
    roles = [*objects.roles(release), *trust_roles(release)]
    account = {"kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    made = [*roles, account, *_bindings(release, roles)]
    extensions = client.ApiextensionsV1Api(api)
    definition = objects.job_definition()
    extensions.create_custom_resource_definition(definition)
    _create(api, namespace, made)
    for server in (release.webhook_tls, release.gateway_tls):
        core.create_namespaced_secret(namespace, _certificate(server, folder))
    with processes.redis(free_port(), folder) as broker:
        place = Place(api, release, folder, api.configuration.host, broker)
        pod = core.create_namespaced_pod(
            namespace,
            {
                "metadata": {"name": "reconciler"},
                "spec": {**TRAINS, "serviceAccountName": ACCOUNT},
            },
        )
        (folder / "token").write_text(place.token(namespace, pod))
        yield place
    kind = definition["metadata"]["name"]
    extensions.delete_custom_resource_definition(kind)
    chosen = f"metadata.name={kind}"
    wait_for(
        lambda: not extensions.list_custom_resource_definition(field_selector=chosen).items,
        "the kind is gone",
    )
    rbac = client.RbacAuthorizationV1Api(api)
    for one in made:
        if one["kind"] == "ClusterRole":
            rbac.delete_cluster_role(one["metadata"]["name"])
        elif one["kind"] == "ClusterRoleBinding":
            rbac.delete_cluster_role_binding(one["metadata"]["name"])
    core.delete_namespace(namespace)


def _certificate(name: str, folder: Path) -> Object:
    """A Secret of somebody else's, as cert-manager keeps it."""
    files = {"tls.crt": "gateway.pem", "tls.key": "gateway.key", "ca.crt": "ca.pem"}
    data = {key: (folder / file).read_text() for key, file in files.items()}
    return {"metadata": {"name": name}, "type": "kubernetes.io/tls", "stringData": data}


def _bindings(release: Release, roles: list[Object]) -> list[Object]:
    """To the reconciler's account, but for what is for viewers."""
    who = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": release.namespace}
    made = []
    for role in roles:
        name, kind = role["metadata"]["name"], role["kind"]
        if not name.startswith(ACCOUNT):
            continue
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        made.append(
            {
                "kind": f"{kind}Binding",
                "metadata": {"name": name},
                "roleRef": reference,
                "subjects": [who],
            }
        )
    return made


def _create(api: client.ApiClient, namespace: str, made: list[Object]) -> None:
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    for one in made:
        kind = one["kind"]
        if kind == "ClusterRole":
            rbac.create_cluster_role(one)
        elif kind == "ClusterRoleBinding":
            rbac.create_cluster_role_binding(one)
        elif kind == "Role":
            rbac.create_namespaced_role(namespace, one)
        elif kind == "RoleBinding":
            rbac.create_namespaced_role_binding(namespace, one)
        else:
            core.create_namespaced_service_account(namespace, one)


# Jobs


def injected_template(release: Release, namespace: str) -> Object:
    """A pod template as the webhook leaves a pod of it, so that no webhook is needed."""
    import jsonpatch

    pod: Object = {
        "metadata": {"name": "x", "annotations": {OPTIMIZE: "true"}},
        "spec": json.loads(json.dumps(TRAINS)),
    }
    decision = decide(pod, Situation(Namespace(namespace), support.TRUST), release)
    made = jsonpatch.JsonPatch(list(decision.operations)).apply(pod)
    metadata = {"annotations": made["metadata"]["annotations"]}
    metadata["annotations"].pop("stitchcore.io/workload")
    return {"metadata": metadata, "spec": made["spec"]}


@dataclass(frozen=True)
class Played:
    """A Job whose pods nobody runs."""

    place: Place
    namespace: str
    name: str

    @property
    def pods(self) -> list[Any]:
        found = self.place.core.list_namespaced_pod(
            self.namespace, label_selector=f"batch.kubernetes.io/job-name={self.name}"
        )
        return sorted(found.items, key=lambda pod: str(pod.metadata.name))

    @property
    def name_of_stitched(self) -> str:
        job = client.BatchV1Api(self.place.api).read_namespaced_job(self.name, self.namespace)
        return f"job-{self.name}-{job.metadata.uid[:8]}"

    def stitched(self) -> Object | None:
        """Its StitchedJob."""
        custom = client.CustomObjectsApi(self.place.api)
        with contextlib.suppress(client.ApiException):
            found: Object = custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, self.name_of_stitched
            )
            return found
        return None

    def status(self) -> Object:
        return (self.stitched() or {}).get("status") or {}

    def phase(self) -> tuple[str, str]:
        status = self.status()
        return status.get("phase", ""), status.get("reason", "")

    def events(self) -> list[str]:
        """Types of the Events that were posted on it, in their order."""
        selector = f"involvedObject.name={self.name}"
        found = self.place.core.list_namespaced_event(self.namespace, field_selector=selector)
        ours = [one for one in found.items if one.reporting_component == "stitchcore.io/reconciler"]
        ordered = sorted(ours, key=lambda one: one.metadata.creation_timestamp)
        return [one.reason for one in ordered]

    def described(self) -> list[str]:
        """The same of its StitchedJob, asked for as `kubectl describe` asks."""
        metadata = (self.stitched() or {})["metadata"]
        about = {"kind": "StitchedJob", "name": metadata["name"], "uid": metadata["uid"]}
        selector = ",".join(f"involvedObject.{name}={value}" for name, value in about.items())
        found = self.place.core.list_namespaced_event(self.namespace, field_selector=selector)
        return [one.reason for one in found.items]

    def set(self, pod: Any, status: Object) -> None:
        """What a kubelet would say of a pod."""
        core = self.place.core
        core.patch_namespaced_pod_status(pod.metadata.name, self.namespace, {"status": status})


def job(place: Place, namespace: str, name: str, template: Object, **spec: Any) -> Played:
    """A Job, and its pods as the controller makes them."""
    body = {
        "metadata": {"name": name, "annotations": spec.pop("annotations", {OPTIMIZE: "true"})},
        "spec": {"template": template, **spec},
    }
    client.BatchV1Api(place.api).create_namespaced_job(namespace, body)
    played = Played(place, namespace, name)
    pods = int(spec.get("parallelism", 1))
    wait_for(lambda: len(played.pods) == pods, "it has its pods")
    return played


def moment(ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago))


def running(ago: float = 30.0) -> Object:
    """A pod whose runtime was delivered and whose container began so many seconds ago."""
    return {
        "phase": "Running",
        "startTime": moment(ago),
        "initContainerStatuses": [
            _container(
                "stitchcore-runtime",
                {
                    "terminated": {
                        "exitCode": 0,
                        "startedAt": moment(ago),
                        "finishedAt": moment(ago),
                    }
                },
            )
        ],
        "containerStatuses": [_container("main", {"running": {"startedAt": moment(ago)}})],
    }


def failed(ago: float = 60.0, lasted: float = 5.0, code: int = 1) -> Object:
    """One that ended with an error so many seconds ago."""
    ended = {"exitCode": code, "startedAt": moment(ago + lasted), "finishedAt": moment(ago)}
    made = running(ago + lasted)
    made["phase"] = "Failed"
    made["containerStatuses"] = [_container("main", {"terminated": ended})]
    return made


def unpullable() -> Object:
    """One that waits for the runtime's image."""
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}"'}
    return {
        "phase": "Pending",
        "initContainerStatuses": [_container("stitchcore-runtime", {"waiting": waiting})],
        "containerStatuses": [_container("main", {"waiting": {"reason": "PodInitializing"}})],
    }


def _container(name: str, state: Object) -> Object:
    return {"name": name, "image": "i", "imageID": "", "ready": False, "restartCount": 0,
            "state": state}  # fmt: skip
