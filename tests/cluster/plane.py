"""The control plane: keys, configuration and command lines of etcd, the API server and its friends.

Everything is computed here and started elsewhere. The API server authenticates by certificates and
by service-account tokens it signs itself (TokenRequest, TokenReview with audiences), authorises by
RBAC, and admits with the defaults, Pod Security among them. Leader election is off: there is one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client, config

from tests.cluster import parts, pki
from tests.cluster.processes import Daemon

ISSUER = "https://kubernetes.default.svc.cluster.local"
CLIENT = {"qps": 1000, "burst": 2000}
"""Controllers wait for the API server, not for their own brakes: thousands of pods in seconds."""
SYSTEM = {
    "admin": ("kubernetes-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "kwok": ("kwok", "system:masters"),
    "dns": ("coredns", "system:masters"),
}
"""Kubeconfigs by file name: user and group."""


@dataclass(frozen=True)
class Network:
    """Where the control plane listens, and the addresses it gives out."""

    address: str = "127.0.0.1"
    port: int = 6443
    etcd_port: int = 2379
    peer_port: int = 2380
    fake_nodes_port: int = 10247
    gateway: str = ""
    """This machine's address on the way to the node."""
    services: str = "10.96.0.0/16"
    pods: str = "10.244.0.0/16"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def local(self) -> bool:
        """No node reaches it: then it has no endpoint that a pod could use either."""
        return self.address == "127.0.0.1"


def write(state: Path, network: Network) -> pki.Authority:
    """Keys, certificates, kubeconfigs and configuration files below `state`; returns who signs."""
    folder = state / "pki"
    folder.mkdir()
    root, front = pki.authority("stitch-testbed"), pki.authority("stitch-testbed-front-proxy")
    (folder / "ca.crt").write_bytes(root.pem)
    pki.write_key(folder / "ca.key", pki.key_pem(root.key))
    (folder / "front-proxy-ca.crt").write_bytes(front.pem)
    signs, verifies = pki.signing_keys()
    pki.write_key(folder / "service-account.key", signs)
    (folder / "service-account.pub").write_bytes(verifies)
    hosts = ["localhost", "127.0.0.1", network.address, pki.first_host(network.services)]
    inside = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    inside.append("kubernetes.default.svc.cluster.local")
    pki.leaf(root, "kube-apiserver", hosts=[*hosts, *inside]).write(folder, "apiserver")
    pki.leaf(front, "front-proxy-client").write(folder, "front-proxy")
    pki.leaf(root, "kube-apiserver-kubelet-client", ["system:masters"]).write(folder, "to-kubelet")
    for name, (user, group) in SYSTEM.items():
        who = pki.leaf(root, user, [group] if group else [])
        text = pki.kubeconfig(network.server, root, user, who)
        pki.write_key(state / f"{name}.conf", text.encode())
    (state / "scheduler.json").write_text(json.dumps(_scheduler(state)))
    return root


def daemons(state: Path, network: Network) -> tuple[Daemon, ...]:
    """The control plane's programs, in the order they are started."""
    return (
        daemon("etcd", _etcd(state, network)),
        daemon("kube-apiserver", [*_serving(state, network), *_admitting(state, network)]),
        daemon("kube-controller-manager", _controllers(state, network)),
        daemon("kube-scheduler", [f"--config={state / 'scheduler.json'}", "--secure-port=0"]),
    )


def client_of(kubeconfig: Path) -> client.ApiClient:
    """A client that reads nothing but this kubeconfig."""
    settings = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    return client.ApiClient(settings)


def kwok(state: Path, network: Network) -> Daemon:
    """Plays the kubelet of every node annotated `kwok.x-k8s.io/node: fake`."""
    flags = [
        f"--kubeconfig={state / 'kwok.conf'}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{network.fake_nodes_port}",
        f"--config={Path(__file__).parent / 'kwok.yaml'}",
    ]
    return daemon("kwok", flags)


def daemon(name: str, flags: list[str]) -> Daemon:
    """One of the cluster's programs, called with these flags."""
    return Daemon(name, (str(parts.program(name)), *flags))


def _etcd(state: Path, network: Network) -> list[str]:
    clients, peers = (f"http://127.0.0.1:{port}" for port in (network.etcd_port, network.peer_port))
    return [
        f"--data-dir={state / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--log-level=warn",
    ]


def _serving(state: Path, network: Network) -> list[str]:
    folder = state / "pki"
    where = ["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"]
    if not network.local:
        where = ["--bind-address=0.0.0.0", f"--advertise-address={network.address}"]
    return [
        *where,
        f"--secure-port={network.port}",
        f"--etcd-servers=http://127.0.0.1:{network.etcd_port}",
        f"--tls-cert-file={folder / 'apiserver.crt'}",
        f"--tls-private-key-file={folder / 'apiserver.key'}",
        f"--service-cluster-ip-range={network.services}",
        f"--kubelet-client-certificate={folder / 'to-kubelet.crt'}",
        f"--kubelet-client-key={folder / 'to-kubelet.key'}",
        f"--kubelet-certificate-authority={folder / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
    ]


def _admitting(state: Path, network: Network) -> list[str]:
    folder = state / "pki"
    return [
        f"--client-ca-file={folder / 'ca.crt'}",
        f"--requestheader-client-ca-file={folder / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={folder / 'front-proxy.crt'}",
        f"--proxy-client-key-file={folder / 'front-proxy.key'}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={folder / 'service-account.pub'}",
        f"--service-account-signing-key-file={folder / 'service-account.key'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
    ]


def _controllers(state: Path, network: Network) -> list[str]:
    folder = state / "pki"
    return [
        f"--kubeconfig={state / 'controller-manager.conf'}",
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={folder / 'service-account.key'}",
        f"--root-ca-file={folder / 'ca.crt'}",
        f"--cluster-signing-cert-file={folder / 'ca.crt'}",
        f"--cluster-signing-key-file={folder / 'ca.key'}",
        "--allocate-node-cidrs",
        f"--cluster-cidr={network.pods}",
        f"--service-cluster-ip-range={network.services}",
        f"--kube-api-qps={CLIENT['qps']}",
        f"--kube-api-burst={CLIENT['burst']}",
    ]


def _scheduler(state: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(state / "scheduler.conf"), **CLIENT},
    }
