"""One step of keeping a release's certificates and keys: read, decide, write; call again later.

Every write says which version of its object it was decided from, so of two reconcilers (one that
ends and one that begins) one's write fails and is decided anew. Nothing is kept in memory.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from stitch_operator import names
from stitch_operator.reconciler.decision import decide
from stitch_operator.reconciler.holding import Held, Role, Write
from stitch_operator.reconciler.rotation import Times
from stitch_operator.webhook.release import Release

LOG = logging.getLogger("stitch.reconciler")
LOOK_SECONDS = 10.0
PROBLEM_SECONDS = 60.0
STEPS = 5
"""From nothing to everything; more in one go would be a quarrel with somebody."""
CALL_SECONDS = 10.0
NOT_FOUND, CONFLICT = 404, 409
MERGE = "application/strategic-merge-patch+json"
MANAGED_BY = {"app.kubernetes.io/managed-by": "stitchcore-reconciler"}
SERVERS = (Role.WEBHOOK, Role.GATEWAY, Role.STORE)
OF_THE_STORE = (Role.SIGNING, Role.KERNEL_KEY)
"""What a kept store is worth nothing without: kept with it."""
Object = dict[str, Any]


def step(api: client.ApiClient, release: Release, now: float, times: Times | None = None) -> float:
    """Brings trust as far as it can be now; seconds until it wants to be called again.

    Blocks. Raises what the client does (ApiException, HTTPError, OSError); call it again then.
    """
    objects = _Objects(api, release)
    for _ in range(STEPS):
        seen = objects.read()
        decision = decide(seen.held, release, times or Times(), now)
        writes = [*decision.writes, *seen.orphans({one.role for one in decision.writes})]
        if not writes:
            for problem in decision.problems:
                LOG.warning("trust: %s", problem)
            return PROBLEM_SECONDS if decision.problems else LOOK_SECONDS
        for write in writes:
            objects.write(write, seen)
    return LOOK_SECONDS


@dataclass(frozen=True)
class _Seen:
    """`held` objects, the documents that they were read from, the uid of the owner of ours, and
    those of ours that nobody owns: they outlive an uninstall."""

    held: Mapping[Role, Held]
    documents: Mapping[Role, Object]
    owner: str
    kept: tuple[Role, ...] = ()

    def orphans(self, written: set[Role]) -> list[Write]:
        """Objects of ours that are not owned as they should be."""
        return [
            Write(role, held.data)
            for role, held in self.held.items()
            if role not in written and role is not Role.HOOKS and held.ours
            and _owners(self.documents[role]) != self.owners(role, self.documents[role])
        ]  # fmt: skip

    def owners(self, role: Role, document: Object) -> list[str]:
        """Uids of the owners that it should have."""
        present = _owners(document)
        if role in self.kept:
            return []
        return present if not self.owner or self.owner in present else [self.owner]


class _Objects:
    """The objects of one release."""

    def __init__(self, api: client.ApiClient, release: Release) -> None:
        self._core = client.CoreV1Api(api)
        self._admission = client.AdmissionregistrationV1Api(api)
        self._release = release
        self._secrets = secrets_of(release)
        self._trust = names.trust_name(release.name)
        self._hooks = f"{release.name}-webhook"

    def read(self) -> _Seen:
        """All that is there."""
        core, namespace = self._core, self._release.namespace
        config_map = core.read_namespaced_config_map
        release = _found(config_map, f"{self._release.name}-release", namespace)
        documents = {
            role: _found(core.read_namespaced_secret, name, namespace)
            for role, name in self._secrets.items()
        }
        documents[Role.TRUST] = _found(config_map, self._trust, namespace)
        hooks = self._admission.read_mutating_webhook_configuration
        documents[Role.HOOKS] = _found(hooks, self._hooks)
        present = {role: one for role, one in documents.items() if one}
        held = {role: _held(role, one, self._labels) for role, one in present.items()}
        owner = str(release["metadata"]["uid"]) if release else ""
        return _Seen(held, present, owner, OF_THE_STORE if self._release.secrets.keep else ())

    def write(self, write: Write, seen: _Seen) -> None:
        """A conflict is no failure: whoever wrote in between has changed what is to be decided."""
        document = seen.documents.get(write.role)
        try:
            self._send(write, document, seen)
        except ApiException as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            LOG.info("trust: %s was changed by somebody else; decided anew", write.role)
            return
        LOG.info("trust: %s written", write.role)

    def _send(self, write: Write, document: Object | None, seen: _Seen) -> None:
        if write.role is Role.HOOKS and document is not None:
            self._patch_hooks(write, document)
            return
        body = self._document(write, document or {}, seen)
        kind, namespace = (
            "config_map" if write.role is Role.TRUST else "secret",
            self._release.namespace,
        )
        if document is None:
            _call(getattr(self._core, f"create_namespaced_{kind}"), namespace, body)
        else:
            change = getattr(self._core, f"replace_namespaced_{kind}")
            _call(change, body["metadata"]["name"], namespace, body)

    @property
    def _labels(self) -> dict[str, str]:
        own = {names.PART_OF: names.PRODUCT, "app.kubernetes.io/instance": self._release.name}
        return {**own, **MANAGED_BY}

    def _document(self, write: Write, present: Object, seen: _Seen) -> Object:
        """The object with the write's data, its other labels, annotations and owners as before."""
        metadata = dict(present.get("metadata") or {})
        metadata["name"] = self._secrets.get(write.role, self._trust)
        metadata["labels"] = {**(metadata.get("labels") or {}), **self._labels}
        metadata["annotations"] = _merged(metadata.get("annotations") or {}, write.annotations)
        wanted = seen.owners(write.role, present)
        if wanted != _owners(present):
            metadata["ownerReferences"] = [self._owned_by(uid) for uid in wanted]
        if write.role is Role.TRUST:
            data = {name: value.decode() for name, value in write.data.items()}
            return {"metadata": metadata, "data": data}
        data = {name: base64.b64encode(value).decode() for name, value in write.data.items()}
        kind = "kubernetes.io/tls" if write.role in SERVERS else "Opaque"
        return {"metadata": metadata, "type": present.get("type", kind), "data": data}

    def _owned_by(self, uid: str) -> Object:
        """An uninstall takes what is owned along."""
        name = f"{self._release.name}-release"
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}

    def _patch_hooks(self, write: Write, document: Object) -> None:
        """Of the webhook configuration nothing but caBundle and the annotation: it is the chart's.
        With its version in the body the patch fails where somebody was faster."""
        hooks = [
            {"name": name, "clientConfig": {"caBundle": base64.b64encode(pem).decode()}}
            for name, pem in write.data.items()
        ]
        version = document["metadata"]["resourceVersion"]
        metadata = {"resourceVersion": version, "annotations": dict(write.annotations)}
        change = self._admission.patch_mutating_webhook_configuration
        _call(change, self._hooks, {"metadata": metadata, "webhooks": hooks}, _content_type=MERGE)


def secrets_of(release: Release) -> dict[Role, str]:
    """Names of the Secrets that are read, somebody's own only where it says whom to trust."""
    wanted = {
        Role.WEBHOOK: release.webhook_tls,
        Role.GATEWAY: release.gateway_tls,
        Role.STORE: release.store_tls,
        Role.SIGNING: release.signing_secret,
    }
    if release.certificates.mode == "self":
        wanted[Role.AUTHORITY] = release.authority_secret
    if not release.secrets.kernel_key:
        wanted[Role.KERNEL_KEY] = release.kernel_key_secret
    if not release.secrets.broker:
        wanted[Role.BROKER] = release.broker_secret
    return wanted


def _call(function: Callable[..., Any], *arguments: Any, **more: Any) -> None:
    function(*arguments, **more, _request_timeout=CALL_SECONDS)


def _found(function: Callable[..., Any], *arguments: str) -> Object:
    """An object as JSON, so that fields this client has never heard of survive; {}: none."""
    try:
        answer = function(*arguments, _preload_content=False, _request_timeout=CALL_SECONDS)
    except ApiException as error:
        if error.status == NOT_FOUND:
            return {}
        raise
    found: Object = json.loads(answer.data)
    return found


def _owners(document: Mapping[str, Any]) -> list[str]:
    metadata = document.get("metadata") or {}
    return [str(one["uid"]) for one in metadata.get("ownerReferences") or []]


def _merged(present: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**present, **wanted}
    return {name: value for name, value in merged.items() if value is not None}


def _held(role: Role, document: Object, labels: Mapping[str, str]) -> Held:
    metadata = document["metadata"]
    if role is Role.HOOKS:
        data = {
            str(one["name"]): base64.b64decode(one["clientConfig"].get("caBundle") or "")
            for one in document.get("webhooks") or []
        }
    elif role is Role.TRUST:
        data = {name: value.encode() for name, value in (document.get("data") or {}).items()}
    else:
        data = {name: base64.b64decode(v) for name, v in (document.get("data") or {}).items()}
    own = metadata.get("labels") or {}
    ours = role is Role.HOOKS or all(own.get(name) == value for name, value in labels.items())
    return Held(data, metadata.get("annotations") or {}, ours)
