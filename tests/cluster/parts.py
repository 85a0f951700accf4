"""The programs of a cluster and where each comes from: releases pinned here, built from Go modules.

A release with replace lines (Kubernetes, etcd) cannot be installed by name: it is built inside a
module of ours, `modules/<release>`, whose go.mod repeats those lines and whose go.sum pins it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.cluster import places

MODULES = Path(__file__).parent / "modules"
STAMP = "k8s.io/component-base/version"


class Level(StrEnum):
    """A control plane whose pods run nowhere, or a node with containers too."""

    API = "api"
    NODE = "node"


@dataclass(frozen=True)
class Release:
    """One project at one version."""

    name: str
    version: str
    own_module: bool = False
    stamps: tuple[str, ...] = ()
    """Linker flags `-X`: Helm and kubectl ask the API server for its version."""

    @property
    def source(self) -> Path:
        """The module of ours that it is built in."""
        return MODULES / self.name

    @property
    def folder(self) -> Path:
        return places.programs() / f"{self.name}-{self.version}"


@dataclass(frozen=True)
class Part:
    """One program."""

    name: str
    release: Release
    package: str
    level: Level

    @property
    def built(self) -> Path:
        return self.release.folder / self.name


KUBERNETES = Release(
    "kubernetes",
    "1.36.3",
    own_module=True,
    stamps=(
        f"{STAMP}.gitVersion=v1.36.3",
        f"{STAMP}.gitMajor=1",
        f"{STAMP}.gitMinor=36",
        f"{STAMP}.gitTreeState=clean",
    ),
)
ETCD = Release("etcd", "3.6.8", own_module=True)
KWOK = Release("kwok", "0.8.0")
CONTAINERD = Release("containerd", "2.3.7")
COREDNS = Release("coredns", "1.15.0")
HELM = Release("helm", "4.3.1")


def _kubernetes(name: str, level: Level) -> Part:
    return Part(name, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", level)


def _containerd(name: str) -> Part:
    return Part(name, CONTAINERD, f"github.com/containerd/containerd/v2/cmd/{name}", Level.NODE)


PARTS = (
    Part("etcd", ETCD, "go.etcd.io/etcd/server/v3", Level.API),
    _kubernetes("kube-apiserver", Level.API),
    _kubernetes("kube-controller-manager", Level.API),
    _kubernetes("kube-scheduler", Level.API),
    _kubernetes("kubectl", Level.API),
    Part("kwok", KWOK, "sigs.k8s.io/kwok/cmd/kwok", Level.API),
    _kubernetes("kubelet", Level.NODE),
    _kubernetes("kube-proxy", Level.NODE),
    _containerd("containerd"),
    _containerd("containerd-shim-runc-v2"),
    _containerd("ctr"),
    Part("coredns", COREDNS, "github.com/coredns/coredns", Level.NODE),
    Part("helm", HELM, "helm.sh/helm/v4/cmd/helm", Level.NODE),
)
"""In the order they are built: the API level first."""


def parts(level: Level) -> tuple[Part, ...]:
    """What a cluster of this level is made of; a node has a control plane too."""
    return tuple(part for part in PARTS if level is Level.NODE or part.level is Level.API)


def program(name: str) -> Path:
    """The program to run: somebody's own (KUBEBUILDER_ASSETS), else ours."""
    [part] = [part for part in PARTS if part.name == name]
    own = places.assets()
    return own / name if own and (own / name).is_file() else part.built


def missing(level: Level) -> list[Part]:
    """Parts of this level that have no program yet."""
    return [part for part in parts(level) if not program(part.name).is_file()]
