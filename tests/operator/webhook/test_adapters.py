"""Each kind: where its templates are, what is stamped, and that nothing else changes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import jsonpatch
import pytest
import yaml

from stitch_operator.webhook import workloads
from stitch_operator.webhook.adapters import ADAPTERS

ASKED = {"stitchcore.io/optimize": "true"}
POD = {"spec": {"containers": [{"name": "main", "image": "tf"}]}}


@dataclass(frozen=True)
class One:
    """A workload's spec, the paths of its templates and how many pods each is for."""

    spec: str
    templates: dict[str, int]


KINDS = {
    ("batch", "Job"): One("{suspend: true, parallelism: 4, template: {}}", {"/spec/template": 4}),
    ("batch", "CronJob"): One(
        "{suspend: true, schedule: x, jobTemplate: {spec: {template: {}}}}",
        {"/spec/jobTemplate/spec/template": 1},
    ),
    ("jobset.x-k8s.io", "JobSet"): One(
        "{suspend: true, replicatedJobs: [{name: a, replicas: 2, template: {spec: {parallelism: 3,"
        " template: {}}}}, {name: b, template: {spec: {template: {}}}}]}",
        {
            "/spec/replicatedJobs/0/template/spec/template": 6,
            "/spec/replicatedJobs/1/template/spec/template": 1,
        },
    ),
    ("kubeflow.org", "TFJob"): One(
        "{runPolicy: {suspend: true}, tfReplicaSpecs: {Worker: {replicas: 3, template: {}},"
        " Chief: {template: {}}}}",
        {"/spec/tfReplicaSpecs/Chief/template": 1, "/spec/tfReplicaSpecs/Worker/template": 3},
    ),
    ("batch.volcano.sh", "Job"): One(
        "{tasks: [{name: ps, replicas: 2, template: {}}, {name: worker, template: {}}]}",
        {"/spec/tasks/0/template": 2, "/spec/tasks/1/template": 1},
    ),
}
IDS = [f"{group}-{kind}" for group, kind in KINDS]


def workload(kind: tuple[str, str], pod: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A workload whose templates are all `pod`."""
    made: dict[str, Any] = {
        "metadata": {"name": "train", "annotations": dict(ASKED), **metadata},
        "spec": yaml.safe_load(KINDS[kind].spec),
    }
    for path in KINDS[kind].templates:
        jsonpatch.apply_patch(
            made, [{"op": "replace", "path": path, "value": copy.deepcopy(pod)}], in_place=True
        )
    return made


def stamp(kind: tuple[str, str], made: dict[str, Any], **inherited: str) -> dict[str, Any]:
    before = copy.deepcopy(made)
    operations = workloads.stamp(*kind, made, inherited)
    assert made == before
    return dict(jsonpatch.apply_patch(made, operations))


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_templates_are_found(kind: tuple[str, str]) -> None:
    adapter = ADAPTERS[kind]
    made = workload(kind, POD)
    found = {
        "/" + "/".join(str(step) for step in template.steps): template.replicas
        for template in adapter.templates(made)
    }
    assert found == KINDS[kind].templates


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"labels": {"a": "b"}}, {"annotations": None}, {"annotations": {"a/b": "c"}}],
    ids=["none", "empty", "labels", "null", "annotations"],
)
def test_templates_are_stamped_and_nothing_else(
    kind: tuple[str, str], metadata: dict[str, Any] | None
) -> None:
    pod = POD if metadata is None else {**POD, "metadata": metadata}
    expected = {**(metadata or {}), "annotations": {**((metadata or {}).get("annotations") or {}),
                **ASKED, "stitchcore.io/workload": "train"}}  # fmt: skip
    made = stamp(kind, workload(kind, pod))
    assert made == workload(kind, {**POD, "metadata": expected})
    assert workloads.stamp(*kind, made, {}) == []


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_a_templates_own_word_stays(kind: tuple[str, str], field: str) -> None:
    pod = {**POD, "metadata": {field: {"stitchcore.io/optimize": "false"}}}
    made = stamp(kind, workload(kind, pod))
    for template in ADAPTERS[kind].templates(made):
        found: Any = made
        for step in template.steps:
            found = found[step]
        words = [
            found["metadata"].get(name, {}).get("stitchcore.io/optimize")
            for name in ("annotations", "labels")
        ]
        assert [word for word in words if word] == ["false"]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_whoever_says_nothing_is_left_alone(kind: tuple[str, str]) -> None:
    silent = workload(kind, POD, annotations={"other": "x", "stitchcore.io/mode": "observe"})
    assert workloads.stamp(*kind, silent, {}) == []
    assert workloads.stamp("apps", "Deployment", workload(kind, POD), {}) == []


def test_trainer_is_told_through_its_own_seam() -> None:
    kind = ("trainer.kubeflow.org", "TrainJob")
    other = {"manager": "kueue.x-k8s.io/manager"}
    spec = {"suspend": True, "runtimePatches": [other], "trainer": {"numNodes": 2}}
    made = {"metadata": {"name": "train", "annotations": dict(ASKED)}, "spec": spec}
    annotations = {**ASKED, "stitchcore.io/workload": "train"}
    pod = {"metadata": {"annotations": annotations}}
    node = {"name": "node", "template": {"spec": {"template": pod}}}
    own = {
        "manager": "stitchcore.io/webhook",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
    }
    stamped = stamp(kind, made)
    both = {"annotations": annotations, "runtimePatches": [other, own]}
    assert stamped["spec"] == {**made["spec"], **both}
    assert workloads.stamp(*kind, stamped, {}) == []
    bare = {"metadata": made["metadata"], "spec": {}}
    assert stamp(kind, bare)["spec"] == {"annotations": annotations, "runtimePatches": [own]}
    said = {"stitchcore.io/optimize": "false", "other": "x"}
    declined = {"metadata": made["metadata"], "spec": {"annotations": said}}
    assert stamp(kind, declined)["spec"]["annotations"] == {**annotations, **said}


def test_what_trainer_fetches_before_training_is_left_alone() -> None:
    kind = ("jobset.x-k8s.io", "JobSet")
    step = "trainer.kubeflow.org/trainjob-ancestor-step"
    groups: list[dict[str, Any]] = []
    for name, label in (("dataset", "dataset-initializer"), ("node", "trainer")):
        job = {"metadata": {"labels": {step: label}}, "spec": {"template": copy.deepcopy(POD)}}
        groups.append({"name": name, "template": job})
    made = {"metadata": {"annotations": dict(ASKED)}, "spec": {"replicatedJobs": groups}}
    dataset, node = stamp(kind, made)["spec"]["replicatedJobs"]
    assert dataset == groups[0]
    assert node["template"]["spec"]["template"]["metadata"]["annotations"]


def test_a_job_takes_over_what_its_cron_job_says() -> None:
    owner = {"kind": "CronJob", "name": "nightly", "controller": True}
    made = workload(
        ("batch", "Job"), POD, name="nightly-28912345", ownerReferences=[owner], annotations={}
    )
    inherited = {"stitchcore.io/optimize": "true", "stitchcore.io/mode": "observe", "else": "x"}
    stamped = stamp(("batch", "Job"), made, **inherited)
    assert stamped["spec"]["template"]["metadata"]["annotations"] == {
        "stitchcore.io/optimize": "true",
        "stitchcore.io/mode": "observe",
        "stitchcore.io/workload": "nightly",
    }
    made["metadata"]["annotations"] = {"stitchcore.io/optimize": "false"}
    stamped = stamp(("batch", "Job"), made, **inherited)
    found = stamped["spec"]["template"]["metadata"]["annotations"]
    assert found["stitchcore.io/optimize"] == "false"


def test_a_label_is_a_word_too_and_no_wins() -> None:
    kind = ("batch", "Job")
    made = workload(kind, POD, annotations={}, labels={"stitchcore.io/optimize": "true"})
    assert workloads.word(made, {}) == {"stitchcore.io/optimize": "true"}
    made = workload(kind, POD, labels={"stitchcore.io/optimize": "false"})
    assert workloads.word(made, {}) == {"stitchcore.io/optimize": "false"}


def test_a_generated_name_is_not_known_yet() -> None:
    made = workload(("batch", "Job"), POD, name=None, generateName="train-")
    assert workloads.workload_name(made) == "train"


def test_a_bare_pod_is_its_own_template() -> None:
    adapter = ADAPTERS["", "Pod"]
    assert [one.steps for one in adapter.templates(POD)] == [()]
    assert adapter.stamp(POD, ASKED) == []
