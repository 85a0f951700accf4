"""The node: containerd, kubelet, kube-proxy and CoreDNS, as on any machine, but enclosed.

The whole control plane runs inside too: then kube-proxy's rules carry the API server's calls to
webhooks behind a Service, and this machine reaches both Services and pods through one link.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.cluster import enclosure, images, parts, pki, plane, processes
from tests.cluster.plane import Network
from tests.cluster.processes import Daemon, NotUp

NAME = "node1"
NEEDED = ("runc", "iptables", "cc", "unshare", "nsenter", "ip", "sysctl")
PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
INSTALL = (
    "apt-get install --no-install-recommends runc iptables containernetworking-plugins "
    "iproute2 procps util-linux gcc libc6-dev"
)
SECONDS = 90.0
DNS_HOST = 10
"""CoreDNS answers at this address of the Services' range, as everywhere."""


def unable() -> str | None:
    """Why no node can run here, with the command that mends it."""
    if os.getuid() != 0:
        return "a node needs root. Mend: `sudo make cluster LEVEL=node`"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if not any((folder / "bridge").is_file() for folder in PLUGINS):
        absent.append("the CNI plug-ins")
    return f"missing: {', '.join(absent)}. Mend: `{INSTALL}`" if absent else None


def write(state: Path, network: Network, root: pki.Authority) -> None:
    """Configuration files and the kubelet's certificate."""
    who = pki.leaf(root, f"system:node:{NAME}", ["system:nodes"], [NAME, network.address])
    who.write(state / "pki", "kubelet")
    text = pki.kubeconfig(network.server, root, "kubelet", who)
    pki.write_key(state / "kubelet.conf", text.encode())
    for folder in ("cni", "images"):
        (state / folder).mkdir()
    (state / "cni" / "10-bridge.conflist").write_text(json.dumps(_bridge(network)))
    (state / "containerd.toml").write_text(_containerd(state))
    (state / "kubelet.json").write_text(json.dumps(_kubelet(state, network)))
    (state / "proxy.json").write_text(json.dumps(_proxy(state, network)))
    (state / "Corefile").write_text(_corefile(state, network))
    shutil.copyfile("/etc/resolv.conf", state / "resolv.conf")


def daemons(state: Path, network: Network) -> tuple[Daemon, ...]:
    """The node's programs, in the order they are started."""
    kubelet = [
        f"--config={state / 'kubelet.json'}",
        f"--kubeconfig={state / 'kubelet.conf'}",
        f"--hostname-override={NAME}",
        f"--node-ip={network.address}",
        f"--root-dir={state / 'kubelet'}",
    ]
    return (
        plane.daemon("containerd", ["-c", str(state / "containerd.toml")]),
        plane.daemon("kubelet", kubelet),
        plane.daemon("kube-proxy", [f"--config={state / 'proxy.json'}"]),
        plane.daemon("coredns", ["-conf", str(state / "Corefile")]),
    )


def join(state: Path, network: Network, start: Callable[[Daemon], Any]) -> None:
    """Starts the node's programs; returns when the node is ready for pods."""
    containerd, *others = daemons(state, network)
    enclosed = enclosure.entering(state)
    address = f"ip address add {dns_address(network)}/32 dev lo"
    subprocess.run([*enclosed, *address.split()], check=True)
    start(containerd)
    processes.await_ready(
        state, ["containerd"], lambda: _answers(state), SECONDS, "the container runtime"
    )
    import_image(state, images.pause(state / "images"))
    for daemon in others:
        start(daemon)
    names = [daemon.name for daemon in (containerd, *others)]
    with plane.client_of(state / "admin.conf") as api:
        core = client.CoreV1Api(api)
        processes.await_ready(state, names, lambda: _ready(core), SECONDS, "the node")


def import_image(state: Path, archive: Path) -> None:
    """Gives the node an image: an OCI or Docker archive."""
    done = _ctr(state, "images", "import", str(archive))
    if done.returncode:
        raise NotUp(f"{archive.name} is no image of this node: {done.stderr.strip()}")


def dns_address(network: Network) -> str:
    return str(ipaddress.ip_network(network.services)[DNS_HOST])


def _answers(state: Path) -> bool:
    return _ctr(state, "version").returncode == 0


def _ctr(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    socket = ["--address", str(state / "containerd" / "sock"), "--namespace", "k8s.io"]
    command = [*enclosure.entering(state), str(parts.program("ctr")), *socket, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def _ready(core: client.CoreV1Api) -> bool:
    try:
        conditions = core.read_node(NAME, _request_timeout=5).status.conditions or ()
    except (client.ApiException, HTTPError, OSError):
        return False
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def _bridge(network: Network) -> dict[str, Any]:
    pods = next(ipaddress.ip_network(network.pods).subnets(new_prefix=24))
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": str(pods)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    plugins = [{**bridge, "ipMasq": False, "ipam": addresses}, ports, {"type": "loopback"}]
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


def _containerd(state: Path) -> str:
    """Without AppArmor and without asking for lower out-of-memory scores: neither is given to a
    machine that is a container itself. Network namespaces are mounted in the state folder."""
    plugins = next(folder for folder in PLUGINS if (folder / "bridge").is_file())
    return f"""version = 3
root = "{state}/containerd/root"
state = "{state}/containerd/state"
[grpc]
  address = "{state}/containerd/sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{state}/cni"
"""


def _kubelet(state: Path, network: Network) -> dict[str, Any]:
    folder = state / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{enclosure.cgroup(state)}",
        "clusterDNS": [dns_address(network)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(state / "resolv.conf"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(folder / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(folder / "kubelet.crt"),
        "tlsPrivateKeyFile": str(folder / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{state / 'containerd' / 'sock'}",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(state / "podlogs"),
    }


def _proxy(state: Path, network: Network) -> dict[str, Any]:
    """Nothing of the machine's connection tracking is changed."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": network.pods,
        "hostnameOverride": NAME,
        "clientConnection": {"kubeconfig": str(state / "proxy.conf")},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def _corefile(state: Path, network: Network) -> str:
    return f""".:53 {{
    bind {dns_address(network)}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {state / "dns.conf"} stitch-testbed
        pods insecure
    }}
    cache 5
}}
"""
