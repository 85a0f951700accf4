"""The calls of an API server that a gateway makes of pods: token reviews, pods and their nodes.

Over HTTP, so that a gateway's own process asks it by `--kubeconfig`, and pods of any kind can be
there without a cluster: those of nodes that advertise GPUs, too. The shapes are Kubernetes's.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stitch_operator.gateway.tokenreview import POD_NAME, POD_UID
from stitch_operator.names import AUDIENCE

Object = dict[str, Any]
READER = "stitch/stitch-reconciler"
"""--reader of a gateway: the account of the pod that `reader` makes."""


@dataclass(frozen=True)
class Made:
    """A pod that is there, its token as the kubelet projects it, and its object."""

    token: str
    document: Object
    audience: str = AUDIENCE

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])


@dataclass
class Pods:
    """Pods by token, and nodes' labels by name."""

    url: str = ""
    made: dict[str, Made] = field(default_factory=dict)
    nodes: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def add(
        self,
        namespace: str,
        job: str,
        limits: Mapping[str, str],
        node: str = "",
        account: str = "default",
        ago: float = 0.0,
        audience: str = AUDIENCE,
    ) -> Made:
        """A pod of a Job of this name, that began so many seconds ago; in place of one before. Its
        token is for `audience`."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago))
        name, uid = f"{job}-0", str(uuid.uuid4())
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-of-{job}",
                 "controller": True}  # fmt: skip
        running = {"name": "main", "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
                   "state": {"running": {"startedAt": now}}}  # fmt: skip
        spec: Object = {
            "serviceAccountName": account,
            "containers": [{"name": "main", "resources": {"limits": dict(limits)}}],
        }
        document: Object = {
            "metadata": {"name": name, "namespace": namespace, "uid": uid,
                         "creationTimestamp": now, "ownerReferences": [owner]},
            "spec": {**spec, **({"nodeName": node} if node else {})},
            "status": {"phase": "Running", "startTime": now, "containerStatuses": [running]},
        }  # fmt: skip
        for other, one in list(self.made.items()):
            about = one.document["metadata"]
            if (about["namespace"], about["name"]) == (namespace, name):
                del self.made[other]
        token = f"token-of-{uid}"
        self.made[token] = Made(token, document, audience)
        return self.made[token]

    def reader(self) -> Made:
        """The reconciler's pod."""
        namespace, _, account = READER.partition("/")
        return self.add(namespace, "reconciler", {}, account=account)

    def kubeconfig(self, folder: Path) -> Path:
        """For a gateway's --kubeconfig."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "gateway"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = folder / "pods.conf"
        path.write_text(json.dumps(document))
        return path

    def answer(self, path: str, body: Any) -> tuple[int, Object]:
        if path.endswith("/tokenreviews"):
            return 201, {**body, "status": self._reviewed(body["spec"])}
        for one in self.made.values():
            about = one.document["metadata"]
            if path == f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}":
                return 200, one.document
        node = path.removeprefix("/api/v1/nodes/")
        if node in self.nodes:
            return 200, {"metadata": {"name": node, "labels": dict(self.nodes[node])}}
        return 404, {"kind": "Status", "code": 404}

    def _reviewed(self, spec: Object) -> Object:
        found = self.made.get(spec["token"])
        if found is None or found.audience not in spec["audiences"]:
            return {"authenticated": False}
        about = found.document["metadata"]
        account = found.document["spec"]["serviceAccountName"]
        extra = {POD_NAME: [about["name"]], POD_UID: [about["uid"]]}
        user = {"username": f"system:serviceaccount:{about['namespace']}:{account}", "extra": extra}
        return {"authenticated": True, "audiences": [found.audience], "user": user}


@contextlib.contextmanager
def answering(answer: Callable[[str, Any], tuple[int, Any]]) -> Iterator[str]:
    """The URL of a server whose `answer` is told a path and the JSON sent there, and says the
    status and the JSON that go back."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, found = answer(self.path, json.loads(data) if data else None)
            out = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def serving() -> Iterator[Pods]:
    """It, answering."""
    held = Pods()
    with answering(held.answer) as held.url:
        yield held
