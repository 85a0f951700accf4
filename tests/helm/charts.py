"""Charts as the real helm renders them, and what tests ask of the objects."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import build, parts
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
CHART, CRDS = ROOT / "helm" / "stitch", ROOT / "helm" / "stitch-crds"
COMBINATIONS = sorted(path.stem.removesuffix("-values") for path in CHART.glob("ci/*-values.yaml"))
NAMESPACE = "platform"
MONITORING = "monitoring.coreos.com/v1"
CAPABILITIES = (
    f"{MONITORING}/ServiceMonitor",
    f"{MONITORING}/PrometheusRule",
    "keda.sh/v1alpha1/ScaledObject",
    "stitchcore.io/v1alpha1/StitchPolicy",
)
Object = dict[str, Any]


class Refused(Exception):
    """What helm says where it does not do it."""


def helm(*arguments: str, stdin: str = "", name: str = "helm") -> str:
    """What helm prints, Helm 4 or the one of that name, fetched where it is not there yet."""
    program = parts.program(name)
    if not program.is_file():
        build.fetch(next(part for part in parts.PARTS if part.name == name))
    done = subprocess.run(
        [str(program), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    if done.returncode:
        raise Refused(done.stderr.strip())
    return done.stdout


def rendered(
    values: str = "",
    *arguments: str,
    name: str = "stitch",
    namespace: str = NAMESPACE,
    by: str = "helm",
) -> str:
    """The chart's text under these values, YAML, in a cluster that has all kinds."""
    able = [f"--api-versions={one}" for one in CAPABILITIES]
    where = ["template", name, str(CHART), "--namespace", namespace, "--kube-version", "1.36.0"]
    return helm(*where, *able, "--values=-", *arguments, stdin=values or "{}", name=by)


@functools.cache
def text_of(combination: str) -> str:
    return rendered((CHART / "ci" / f"{combination}-values.yaml").read_text())


def objects(text: str) -> list[Object]:
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def of(combination: str) -> list[Object]:
    """All objects of a file of ci/."""
    return objects(text_of(combination))


def one(found: Sequence[Object], kind: str, name: str) -> Object:
    """The object of this kind and name."""
    (match,) = [o for o in found if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return match


def pods(found: Sequence[Object]) -> Iterator[tuple[str, Object, Object]]:
    """(name, metadata, spec) of every pod that the objects are or make."""
    for made in found:
        name, spec = f"{made['kind']}/{made['metadata']['name']}", made.get("spec") or {}
        if made["kind"] == "Pod":
            yield name, made["metadata"], spec
        elif made["kind"] == "CronJob":
            template = spec["jobTemplate"]["spec"]["template"]
            yield name, template["metadata"], template["spec"]
        elif "template" in spec:
            yield name, spec["template"]["metadata"], spec["template"]["spec"]


def containers(spec: Object) -> list[Object]:
    """Of a pod, those that run first among them."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


def release_of(found: Sequence[Object]) -> Any:
    """release.json."""
    return json.loads(one(found, "ConfigMap", "stitch-release")["data"]["release.json"])


def selected(selector: Object, labels: Object) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())
