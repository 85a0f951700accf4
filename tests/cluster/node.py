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
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.cluster import enclosure, images, parts, pki, plane, processes
from tests.cluster.enclosure import Site
from tests.cluster.plane import Network
from tests.cluster.processes import Daemon, NotUp

NEEDED = ("runc", "iptables", "cc", "unshare", "nsenter", "ip", "sysctl")
PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
INSTALL = (
    "apt-get install --no-install-recommends runc iptables containernetworking-plugins "
    "iproute2 procps util-linux gcc libc6-dev"
)
SECONDS = 600.0
REGISTRIES = "registries"
"""Folder that says where registries are, one folder for each: containerd's hosts.toml."""
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


def write(site: Site, network: Network, root: pki.Authority) -> None:
    """Configuration files and the kubelet's certificate."""
    folder, (address, _) = site.folder, site.addresses(network)
    (folder / "pki").mkdir(exist_ok=True)
    who = pki.leaf(root, f"system:node:{site.name}", ["system:nodes"], [site.name, address])
    who.write(folder / "pki", "kubelet")
    text = pki.kubeconfig(network.server, root, "kubelet", who)
    pki.write_key(folder / "kubelet.conf", text.encode())
    for name in ("cni", "images", REGISTRIES):
        (folder / name).mkdir()
    (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_bridge(site, network)))
    (folder / "containerd.toml").write_text(_containerd(folder))
    (folder / "kubelet.json").write_text(json.dumps(_kubelet(site, network)))
    (folder / "proxy.json").write_text(json.dumps(_proxy(site, network)))
    if site.first:
        (folder / "Corefile").write_text(_corefile(folder, network))
    shutil.copyfile("/etc/resolv.conf", folder / "resolv.conf")


def daemons(site: Site, network: Network) -> tuple[Daemon, ...]:
    """The node's programs, in the order they are started. The first one has the cluster's DNS."""
    folder = site.folder
    kubelet = [
        f"--config={folder / 'kubelet.json'}",
        f"--kubeconfig={folder / 'kubelet.conf'}",
        f"--hostname-override={site.name}",
        f"--node-ip={site.addresses(network)[0]}",
        f"--root-dir={folder / 'kubelet'}",
    ]
    made = [
        plane.daemon("containerd", ["-c", str(folder / "containerd.toml")]),
        plane.daemon("kubelet", kubelet),
        plane.daemon("kube-proxy", [f"--config={folder / 'proxy.json'}"]),
    ]
    if site.first:
        made.append(plane.daemon("coredns", ["-conf", str(folder / "Corefile")]))
    return tuple(replace(one, name=site.program(one.name)) for one in made)


def join(site: Site, network: Network, start: Callable[[Daemon], Any]) -> None:
    """Starts the node's programs; returns when the node is ready for pods."""
    containerd, *others = daemons(site, network)
    if site.first:
        address = f"ip address add {dns_address(network)}/32 dev lo"
        subprocess.run([*enclosure.entering(site), *address.split()], check=True)
    start(containerd)
    processes.await_ready(
        site.state, [containerd.name], lambda: _answers(site), SECONDS, "the container runtime"
    )
    import_image(site, images.pause(site.folder / "images"))
    for daemon in others:
        start(daemon)
    names = [daemon.name for daemon in (containerd, *others)]
    with plane.client_of(site.state / "admin.conf") as api:
        core = client.CoreV1Api(api)
        processes.await_ready(site.state, names, lambda: _ready(core, site), SECONDS, site.name)


def import_image(site: Site, archive: Path) -> None:
    """Gives the node an image: an OCI or Docker archive."""
    done = _ctr(site, "images", "import", str(archive))
    if done.returncode:
        raise NotUp(f"{archive.name} is no image of this node: {done.stderr.strip()}")


def remove_image(site: Site, name: str) -> None:
    """Takes an image from the node, as a registry that lost it would."""
    done = _ctr(site, "images", "remove", "--sync", name)
    if done.returncode:
        raise NotUp(f"{name} stays on this node: {done.stderr.strip()}")


def dns_address(network: Network) -> str:
    return str(ipaddress.ip_network(network.services)[DNS_HOST])


def _answers(site: Site) -> bool:
    return _ctr(site, "version").returncode == 0


def _ctr(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    socket = ["--address", str(site.folder / "containerd" / "sock"), "--namespace", "k8s.io"]
    command = [*enclosure.entering(site), str(parts.program("ctr")), *socket, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def _ready(core: client.CoreV1Api, site: Site) -> bool:
    try:
        conditions = core.read_node(site.name, _request_timeout=5).status.conditions or ()
    except (client.ApiException, HTTPError, OSError):
        return False
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def _bridge(site: Site, network: Network) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": str(site.subnet(network.pods))}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    plugins = [{**bridge, "ipMasq": False, "ipam": addresses}, ports, {"type": "loopback"}]
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


def _containerd(folder: Path) -> str:
    """Without AppArmor and without asking for lower out-of-memory scores: neither is given to a
    machine that is a container itself. Network namespaces are mounted in the state folder."""
    plugins = next(folder for folder in PLUGINS if (folder / "bridge").is_file())
    return f"""version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd/sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PAUSE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{folder}/{REGISTRIES}"
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
    conf_dir = "{folder}/cni"
"""


def _kubelet(site: Site, network: Network) -> dict[str, Any]:
    folder = site.folder
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{enclosure.cgroup(site)}",
        "clusterDNS": [dns_address(network)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(site.state / "pki" / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(folder / "pki" / "kubelet.crt"),
        "tlsPrivateKeyFile": str(folder / "pki" / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{folder / 'containerd' / 'sock'}",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(folder / "podlogs"),
    }


def _proxy(site: Site, network: Network) -> dict[str, Any]:
    """Nothing of the machine's connection tracking is changed."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": network.pods,
        "hostnameOverride": site.name,
        "clientConnection": {"kubeconfig": str(site.state / "proxy.conf")},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def _corefile(folder: Path, network: Network) -> str:
    return f""".:53 {{
    bind {dns_address(network)}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {folder / "dns.conf"} stitch-testbed
        pods insecure
    }}
    cache 5
}}
"""
