"""What keeps a node apart: process, mount and network namespaces of its own, and a cgroup.

One process holds the namespaces; everything of the node runs inside them. When it is killed the
kernel ends every process inside, containers too, and with them go the mounts, the interfaces, the
routes through them and the rules of kube-proxy. What programs write at fixed places (/run,
/var/lib, /var/log) lands in the state folder. So only the cgroup and that folder are tidied.

There is no way out: no node has a route to another network, and what pods send towards this machine
is refused unless it answers.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.cluster.plane import Network
from tests.cluster.processes import Daemon, NotUp

HOLDER = "namespaces"
FIRST, SECOND = "node1", "node2"
CGROUPS = Path("/sys/fs/cgroup")
CPUSET = ("cpuset.mems", "cpuset.cpus")
"""A new cpuset of cgroup v1 is empty, and nothing can run in it."""
BLOCKS = [ipaddress.ip_network(f"10.{second}.0.0/14") for second in range(64, 252, 4)]
INWARD = "iptables -w -A FORWARD -o eth0 -m conntrack --ctstate NEW -j REJECT"
"""Pods may answer what lies beyond the first node, and begin nothing there."""
HOLD = """
set -e
cd "$1"
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
mount -t overlay -o "lowerdir=/var/lib,upperdir=$PWD/lib,workdir=$PWD/work" overlay /var/lib
mount --bind "$PWD/varlog" /var/log
touch "$PWD/enclosed"
while :; do sleep 3600; done
"""


@dataclass(frozen=True)
class Site:
    """Where a node of the cluster at `state` keeps its files, and what its programs are called."""

    state: Path
    name: str = FIRST

    @property
    def first(self) -> bool:
        return self.name == FIRST

    @property
    def folder(self) -> Path:
        return self.state if self.first else self.state / self.name

    def program(self, name: str) -> str:
        """As pid and log files name it."""
        return name if self.first else f"{self.name}-{name}"

    def subnet(self, range: str) -> ipaddress.IPv4Network:
        """Its part of the cluster's range of addresses."""
        within = ipaddress.IPv4Network(range, strict=False).subnets(new_prefix=24)
        first, second = itertools.islice(within, 2)
        return first if self.first else second

    def addresses(self, network: Network) -> tuple[str, str]:
        """The node's own, and of what it reaches all else through."""
        if self.first:
            return network.address, network.gateway
        between = self.subnet(f"{network.address}/16")
        return str(between[2]), str(between[1])


def network() -> Network:
    """Addresses that nothing on this machine uses."""
    for block in BLOCKS:
        if not any(block.overlaps(used) for used in used_networks()):
            node, services, pods, _ = block.subnets(new_prefix=16)
            return Network(
                address=str(node[2]), gateway=str(node[1]), services=str(services), pods=str(pods)
            )
    raise NotUp("every range of 10.64.0.0 to 10.251.255.255 overlaps a route of this machine")


def used_networks() -> list[ipaddress.IPv4Network]:
    """Where this machine's routes lead, the default route aside."""
    routes = json.loads(_run("ip", "-json", "route", "show", "table", "all", "type", "unicast"))
    named = (route["dst"] for route in routes if route["dst"] != "default")
    return [ipaddress.IPv4Network(name) for name in named if ":" not in name]


def enclose(site: Site, network: Network) -> None:
    """Makes the namespaces, the cgroup and the way between this machine and the first node, or
    between that one and another."""
    pid = _hold(site)
    if site.first:
        _connect(site, network, pid)
    else:
        _connect_to_first(site, network, pid)


def _hold(site: Site) -> int:
    for name in ("lib", "work", "varlog"):
        (site.folder / name).mkdir()
    for folder in cgroups(site):
        folder.mkdir()
        _fill_cpuset(folder)
    apart = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    name = site.program(HOLDER)
    holder = Daemon(name, (*apart, "sh", "-c", HOLD, "sh", str(site.folder)))
    pid = processes.start(site.state, holder)
    there = (site.folder / "enclosed").exists
    processes.await_ready(site.state, [name], there, 20, "the namespaces")
    return pid


def _connect(site: Site, network: Network, pid: int) -> None:
    outside = link(site.state)
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "address", "add", f"{network.gateway}/24", "dev", outside)
    _run("ip", "link", "set", outside, "up")
    _configure(site, network.address, network.gateway, network.services)
    _run(*entering(site), *INWARD.split(), "--reject-with", "icmp-net-prohibited")
    for reached in (network.services, network.pods):
        _run("ip", "route", "add", reached, "via", network.address)


def _connect_to_first(site: Site, network: Network, pid: int) -> None:
    """The other node reaches everything through the first one, and is reached so."""
    first = entering(Site(site.state))
    way = ("type", "veth", "peer", "name", "eth0", "netns", str(pid))
    mine = processes.pid_file(site.state, HOLDER).read_text().strip()
    _run("ip", "link", "add", site.name, "netns", mine, *way)
    address, gateway = site.addresses(network)
    _run(*first, "ip", "address", "add", f"{gateway}/24", "dev", site.name)
    _run(*first, "ip", "link", "set", site.name, "up")
    _run(*first, "ip", "route", "add", str(site.subnet(network.pods)), "via", address)
    _configure(site, address, gateway, "default")
    _run("ip", "route", "add", f"{address}/32", "via", network.address)


def _configure(site: Site, address: str, gateway: str, beyond: str) -> None:
    """A node's own end of the way, and what lies beyond it. The first one's Services do: nothing is
    ever sent there, but without a route no program could begin to."""
    for line in (
        "ip link set lo up",
        f"ip address add {address}/24 dev eth0",
        "ip link set eth0 up",
        f"ip route add {beyond} via {gateway}",
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1",
    ):
        _run(*entering(site), *line.split())


def entering(site: Site) -> tuple[str, ...]:
    """A command's beginning that runs the rest inside. The holder is the namespaces' first process
    only for its children, so each namespace is named by its file."""
    kept = f"/proc/{processes.pid_file(site.state, site.program(HOLDER)).read_text().strip()}/ns"
    return (
        "nsenter",
        f"--net={kept}/net",
        f"--mount={kept}/mnt",
        f"--pid={kept}/pid_for_children",
    )


def link(state: Path) -> str:
    """The machine's end of the way to the node; a name may have 15 characters."""
    return f"st-{state.stat().st_ino % 0xFFFFFFFFFF:x}"


def cgroup(site: Site) -> str:
    """The cgroup that all pods of the node are in."""
    own = f"stitch-testbed-{site.state.name}"
    return own if site.first else f"{own}-{site.name}"


def cgroups(site: Site) -> list[Path]:
    """That cgroup, in each hierarchy (cgroup v1) or in the one there is."""
    if (CGROUPS / "cgroup.controllers").is_file():
        return [CGROUPS / cgroup(site)]
    hierarchies = [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").is_file()]
    return [path / cgroup(site) for path in hierarchies if not path.is_symlink()]


def remove_traces(state: Path) -> None:
    """After the processes have ended: the cgroups, and the link if the kernel still has it."""
    for top in (*cgroups(Site(state)), *cgroups(Site(state, SECOND))):
        inner = sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True)
        for folder in (*inner, top):
            _remove_cgroup(folder)
    with suppress(NotUp):
        _run("ip", "link", "delete", link(state))


def _remove_cgroup(folder: Path, seconds: float = 10.0) -> None:
    """A cgroup is busy for a moment after its last process."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _fill_cpuset(folder: Path) -> None:
    for name in CPUSET:
        if (folder / name).is_file():
            (folder / name).write_text((folder.parent / name).read_text())


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotUp(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
