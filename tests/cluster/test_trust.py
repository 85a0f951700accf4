"""Certificates and keys in a real API server, kept by an account that may do that and no more:
made, replaced while pods are created all the time, and gone with the release."""

from __future__ import annotations

import base64
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.names import trust_name
from stitch_operator.reconciler import issuing, trust
from stitch_operator.reconciler.rotation import Times
from stitch_operator.webhook import objects
from stitch_operator.webhook.release import Release
from tests.cluster import plane, releasing
from tests.cluster.cluster import Cluster
from tests.operator.webhook import support
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
QUICK = Times(overlap=3.0, propagation=2.0, grace=12.0, signing_grace=3.0)
"""As long as these tests' kubelet and webhooks need to follow: 1 s and 5 s."""
INJECTED = "stitchcore.io/injected"
SECRETS = ("ca", "webhook-tls", "gateway-tls", "store-tls", "signing", "kernel-key", "broker")
POD = support.case("one_container").given


@dataclass
class Kept:
    """A release whose trust is kept, by `api`'s account; `admin` may do everything."""

    release: Release
    admin: client.ApiClient
    api: client.ApiClient

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.admin)

    def step(self) -> float:
        return trust.step(self.api, self.release, time.time(), QUICK)

    def data(self, what: str) -> dict[str, bytes]:
        held = self.core.read_namespaced_secret(
            f"{self.release.name}-{what}", self.release.namespace
        )
        return {name: base64.b64decode(value) for name, value in (held.data or {}).items()}

    def trusted(self) -> dict[str, str]:
        name = trust_name(self.release.name)
        held = self.core.read_namespaced_config_map(name, self.release.namespace)
        return dict(held.data)

    def authorities(self) -> set[str]:
        return set(issuing.certificates(self.trusted()["ca.pem"]))

    def hooked(self) -> list[set[str]]:
        admission = client.AdmissionregistrationV1Api(self.admin)
        hooks = admission.read_mutating_webhook_configuration(f"{self.release.name}-webhook")
        pems = [base64.b64decode(one.client_config.ca_bundle or "") for one in hooks.webhooks]
        return [set(issuing.certificates(pem)) for pem in pems]

    def rotate(self, what: str, value: str = "true") -> None:
        body = {"metadata": {"annotations": {"stitchcore.io/rotate": value}}}
        name = f"{self.release.name}-{what}"
        self.core.patch_namespaced_secret(name, self.release.namespace, body)

    @contextmanager
    def running(self, every: float = 0.3) -> Iterator[None]:
        """The reconciler's loop."""
        stop, failures = threading.Event(), []

        def loop() -> None:
            while not stop.wait(every):
                try:
                    self.step()
                except Exception as error:
                    failures.append(error)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(120)
        assert failures == []


@contextmanager
def release_in(
    cluster: Cluster, namespace: str, folder: Path, url: str = "https://127.0.0.1:1", **changes: Any
) -> Iterator[Kept]:
    """A release by the namespace's name, without any of its Secrets."""
    names = {"name": namespace, "namespace": namespace}
    release = support.release(
        **{"certificates": {"webhookNames": ["127.0.0.1"]}, **names, **changes}
    )
    with ExitStack() as stack:
        admin = stack.enter_context(cluster.api())
        stack.enter_context(releasing.configured(admin, release, url))
        roles = objects.trust_roles(release)
        account = releasing.account(admin, release, "reconciler", roles, folder)
        api = stack.enter_context(plane.client_of(stack.enter_context(account)))
        yield Kept(release, admin, api)


@pytest.fixture
def kept(own_cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Kept]:
    with release_in(own_cluster, namespace, tmp_path) as made:
        yield made


# ---- what is made ------------------------------------------------------------------------------
def test_everything_is_made_by_an_account_that_may_do_no_more(kept: Kept) -> None:
    assert kept.step() == trust.LOOK_SECONDS
    by = issuing.pair(kept.data("ca")["ca.crt"], kept.data("ca")["ca.key"])
    assert by is not None
    for server in ("webhook-tls", "gateway-tls", "store-tls"):
        data = kept.data(server)
        made = issuing.pair(data["tls.crt"], data["tls.key"])
        assert made is not None and issuing.signed(made.certificate, by.certificate)
    one = issuing.identity(by.certificate)
    assert kept.authorities() == {one} and kept.hooked() == [{one}] * 3
    assert len(kept.data("signing")["signing.key"]) == 32
    version = versions(kept)
    assert kept.step() == trust.LOOK_SECONDS and versions(kept) == version


def versions(kept: Kept) -> dict[str, str]:
    listed = kept.core.list_namespaced_secret(kept.release.namespace).items
    return {one.metadata.name: one.metadata.resource_version for one in listed}


def test_what_the_account_must_not_do_fails(kept: Kept, own_cluster: Cluster) -> None:
    kept.step()
    name, namespace = kept.release.name, kept.release.namespace
    core = client.CoreV1Api(kept.api)
    kept.core.create_namespaced_secret(namespace, {"metadata": {"name": "other"}})
    admission = client.AdmissionregistrationV1Api(kept.api)
    body: dict[str, Any] = {"metadata": {"annotations": {"a": "b"}}}
    tried: list[Callable[[], Any]] = [
        lambda: core.read_namespaced_secret("other", namespace),
        lambda: core.list_namespaced_secret(namespace),
        lambda: core.patch_namespaced_secret("other", namespace, body),
        lambda: core.delete_namespaced_secret(f"{name}-ca", namespace),
        lambda: core.read_namespaced_secret(f"{name}-ca", "kube-system"),
        lambda: core.create_namespaced_secret("default", {"metadata": {"name": "x"}}),
        lambda: core.patch_namespaced_config_map(f"{name}-release", namespace, body),
        lambda: core.delete_namespaced_config_map(trust_name(name), namespace),
        lambda: core.list_namespaced_config_map(namespace),
        lambda: core.list_namespaced_pod(namespace),
        lambda: admission.list_mutating_webhook_configuration(),
        lambda: admission.read_mutating_webhook_configuration("other"),
        lambda: admission.patch_mutating_webhook_configuration("other", body),
        lambda: admission.delete_mutating_webhook_configuration(f"{name}-webhook"),
    ]
    for number, one in enumerate(tried):
        with pytest.raises(client.ApiException) as failed:
            one()
        assert failed.value.status == 403, f"number {number}: {failed.value.status}"


def test_the_webhooks_account_reads_no_secret(
    kept: Kept, own_cluster: Cluster, tmp_path: Path
) -> None:
    kept.step()
    name, namespace = kept.release.name, kept.release.namespace
    roles = objects.roles(kept.release)
    with (
        releasing.account(kept.admin, kept.release, "webhook", roles, tmp_path) as account,
        plane.client_of(account) as api,
    ):
        core = client.CoreV1Api(api)
        selector = f"metadata.name={trust_name(name)}"
        assert len(core.list_namespaced_config_map(namespace, field_selector=selector).items) == 1
        tried: list[Callable[[], Any]] = [
            lambda: core.read_namespaced_secret(f"{name}-webhook-tls", namespace),
            lambda: core.list_namespaced_config_map(namespace),
            lambda: core.read_namespaced_config_map(f"{name}-release", namespace),
        ]
        for one in tried:
            with pytest.raises(client.ApiException) as failed:
                one()
            assert failed.value.status == 403


def test_an_uninstall_takes_it_along(kept: Kept) -> None:
    kept.step()
    name, namespace = f"{kept.release.name}-release", kept.release.namespace
    assert len(kept.core.list_namespaced_secret(namespace).items) == len(SECRETS)
    kept.core.delete_namespaced_config_map(name, namespace)
    wait_for(lambda: not kept.core.list_namespaced_secret(namespace).items, "Secrets are gone")
    wait_for(lambda: not _there(kept), "and whom to trust")


def test_what_a_store_is_signed_with_stays_where_the_store_does(
    kept: Kept, own_cluster: Cluster
) -> None:
    kept.step()
    name, namespace = kept.release.name, kept.release.namespace
    before = kept.data("signing")
    keeping = replace(kept, release=support.release(name=name, namespace=namespace,
                                                    secrets={"keep": True}))  # fmt: skip
    keeping.step()  # also those that were made before somebody thought of it
    keeping.step()
    kept.core.delete_namespaced_config_map(f"{name}-release", namespace)

    def left() -> set[str]:
        return {one.metadata.name for one in kept.core.list_namespaced_secret(namespace).items}

    wait_for(lambda: left() == {f"{name}-signing", f"{name}-kernel-key"}, "the rest is gone")
    keeping.step()
    assert keeping.data("signing") == before


def _there(kept: Kept) -> bool:
    try:
        kept.trusted()
    except client.ApiException as error:
        return bool(error.status != 404)
    return True


def test_who_was_made_before_its_owner_gets_one(kept: Kept) -> None:
    """A release's ConfigMap that was deleted and made again has another uid."""
    name, namespace = f"{kept.release.name}-release", kept.release.namespace
    held = kept.core.read_namespaced_config_map(name, namespace)
    kept.core.delete_namespaced_config_map(name, namespace)
    kept.step()
    assert not kept.core.list_namespaced_secret(namespace).items[0].metadata.owner_references
    again = kept.core.create_namespaced_config_map(
        namespace, {"metadata": {"name": name}, "data": held.data}
    )
    kept.step()
    for one in kept.core.list_namespaced_secret(namespace).items:
        assert [owner.uid for owner in one.metadata.owner_references] == [again.metadata.uid]


def test_several_at_once_make_one_of_each(kept: Kept) -> None:
    threads = [threading.Thread(target=kept.step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    kept.step()
    by = issuing.pair(kept.data("ca")["ca.crt"], kept.data("ca")["ca.key"])
    assert by is not None and kept.authorities() == {issuing.identity(by.certificate)}
    made = issuing.pair(kept.data("gateway-tls")["tls.crt"], kept.data("gateway-tls")["tls.key"])
    assert made is not None and issuing.signed(made.certificate, by.certificate)


def test_nobody_elses_write_is_lost(kept: Kept) -> None:
    """Somebody counts in an annotation of the authority's Secret while it is replaced."""
    kept.step()
    stop, counted = threading.Event(), 0

    def meddle() -> None:
        nonlocal counted
        name, namespace = f"{kept.release.name}-ca", kept.release.namespace
        for number in itertools.count(1):
            if stop.is_set():
                return
            held = kept.core.read_namespaced_secret(name, namespace)
            before = int((held.metadata.annotations or {}).get("count", 0))
            assert before == number - 1
            body = {"metadata": {"annotations": {"count": str(number)}}}
            kept.core.patch_namespaced_secret(name, namespace, body)
            counted = number
            stop.wait(0.15)  # a reconciler reads and decides meanwhile, now and then undisturbed

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        with kept.running(0.05):
            for _ in range(3):
                replaced(kept, "ca", "now")
    finally:
        stop.set()
        thread.join(120)
    held = kept.core.read_namespaced_secret(f"{kept.release.name}-ca", kept.release.namespace)
    assert int(held.metadata.annotations["count"]) == counted > 10


def replaced(kept: Kept, what: str, value: str = "true") -> None:
    """Asks for another certificate, and waits until it is there."""
    name = "ca.crt" if what == "ca" else "tls.crt"
    before = kept.data(what)[name]
    kept.rotate(what, value)
    wait_for(lambda: kept.data(what)[name] != before, f"another {what}")


def test_others_certificates_are_followed(
    own_cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "certificates": {"mode": "existing", "webhook": "theirs", "gateway": "theirs"}
    }
    with release_in(own_cluster, namespace, tmp_path, **changes) as kept:
        assert kept.step() == trust.PROBLEM_SECONDS and not _there(kept)
        other = issuing.authority("theirs", time.time(), 3600)
        made = issuing.server(["theirs"], other, time.time(), 3600)
        pem = {"tls.crt": made.pem, "tls.key": made.key_pem, "ca.crt": other.pem}
        data = {name: base64.b64encode(value).decode() for name, value in pem.items()}
        body = {"metadata": {"name": "theirs"}, "type": "kubernetes.io/tls", "data": data}
        kept.core.create_namespaced_secret(namespace, body)
        assert kept.step() == trust.LOOK_SECONDS
        one = issuing.identity(other.certificate)
        assert kept.authorities() == {one} and kept.hooked() == [{one}] * 3
        with pytest.raises(client.ApiException):  # what it does not make it cannot read either
            client.CoreV1Api(kept.api).read_namespaced_secret(f"{namespace}-ca", namespace)


# ---- rotation under load -----------------------------------------------------------------------
@dataclass
class Stream:
    """Pods created one after the other, by several; what each was missing."""

    admin: client.ApiClient
    namespace: str
    created: int = 0
    missed: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def create(self) -> None:
        core = client.CoreV1Api(self.admin)
        body = {"apiVersion": "v1", "kind": "Pod", **POD}
        body["metadata"] = {**POD["metadata"], "generateName": "stream-"}
        body["metadata"].pop("name", None)
        body["metadata"].pop("ownerReferences", None)
        while not self.stop.is_set():
            pod = core.create_namespaced_pod(self.namespace, body)
            if INJECTED not in (pod.metadata.annotations or {}):
                self.missed.append(str(pod.metadata.annotations))
            self.created += 1


@contextmanager
def streaming(admin: client.ApiClient, namespace: str) -> Iterator[Stream]:
    made = Stream(admin, namespace)
    threads = [threading.Thread(target=made.create, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        for thread in threads:
            thread.join(120)


def test_no_pod_is_missed_while_certificates_are_replaced(
    own_cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Two replicas whose files follow at different speeds; the certificate by hand, then the
    authority, all the way until the old one is not trusted any more."""
    ports: list[int] = []
    with ExitStack() as stack:
        on = stack.enter_context
        url = f"https://127.0.0.1:{on(releasing.service(ports))}"
        kept = on(release_in(own_cluster, namespace, tmp_path, url))
        roles = objects.roles(kept.release)
        account = on(releasing.account(kept.admin, kept.release, "webhook", roles, tmp_path))
        replicas = []
        for number, behind in enumerate((0.2, 1.0)):
            files = tmp_path / f"files-{number}"
            on(releasing.volume(kept.admin, namespace, kept.release.webhook_tls, files, behind))
            folder = tmp_path / f"replica-{number}"
            replicas.append(on(releasing.replica(folder, kept.release, account, files)))
        ports += [one.port for one in replicas]
        assert not any(one.ready() for one in replicas), "without whom to trust nobody is"
        on(kept.running())
        wait_for(lambda: all(one.ready() for one in replicas), "both are ready")
        other = on(_namespace(kept))
        wait_for(lambda: _injected(kept, other), "the API server asks")
        before = releasing.fail_open(own_cluster)

        def serves(one: releasing.Replica) -> bool:
            shown = ssl.get_server_certificate(("127.0.0.1", one.port))
            return kept.data("webhook-tls")["tls.crt"].decode().startswith(shown.strip())

        with streaming(kept.admin, other) as stream:
            replaced(kept, "webhook-tls")
            wait_for(lambda: all(map(serves, replicas)), "both serve it")
            replaced(kept, "ca")
            wait_for(lambda: len(kept.authorities()) == 1, "the old one is not trusted")
            after = stream.created + 20
            wait_for(lambda: stream.created > max(after, 50), "pods are created")
        assert stream.missed == []
        assert releasing.fail_open(own_cluster) == before
        for one in replicas:
            assert one.count("stitch_injections_total") > 5
            assert one.count("stitch_webhook_certificate_failures_total") < 10


@contextmanager
def _namespace(kept: Kept) -> Iterator[str]:
    """One that is not the release's own."""
    name = f"{kept.release.namespace}-jobs"
    kept.core.create_namespace({"metadata": {"name": name}})
    accounts = kept.core.list_namespaced_service_account
    wait_for(lambda: accounts(name).items, "the namespace has its service account")
    yield name
    kept.core.delete_namespace(name)


def _injected(kept: Kept, namespace: str) -> bool:
    body = {"apiVersion": "v1", "kind": "Pod", **POD}
    body["metadata"] = {k: v for k, v in POD["metadata"].items() if k != "ownerReferences"}
    with suppress(client.ApiException):
        made = kept.core.create_namespaced_pod(namespace, body, dry_run="All")
        return INJECTED in (made.metadata.annotations or {})
    return False
