"""The examples that users copy: each one's pods are injected, and nothing but what it says is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
import yaml

from stitch_operator.webhook import policy, workloads
from stitch_operator.webhook.adapters import ADAPTERS
from stitch_operator.webhook.adapters.adapter import at
from stitch_operator.webhook.injection import Situation, decide
from stitch_operator.webhook.policy import Namespace
from tests.operator.webhook import support

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"
DOCUMENTS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml")}
OTHERS = {"egress", "policy"}
"""Not workloads."""
BUILT_IN = {"job", "cronjob", "pod", "egress"}


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Pods that it makes once its word is stamped, as far as it says itself what they are."""
    group, _, _ = document["apiVersion"].rpartition("/")
    made = copy.deepcopy(document)
    if document["kind"] == "Pod":
        return [made]
    operations = workloads.stamp(group, document["kind"], made, {})
    made = jsonpatch.apply_patch(made, operations)
    templates = ADAPTERS[group, document["kind"]].templates(made)
    return [copy.deepcopy(at(made, one.steps)) for one in templates]


def result(pod: dict[str, Any]) -> str:
    return decide(pod, Situation(Namespace("team"), support.TRUST), support.release()).result


def test_there_is_one_for_each_kind() -> None:
    kinds = {(document["apiVersion"].rpartition("/")[0], document["kind"])
             for name, document in DOCUMENTS.items() if name not in OTHERS}  # fmt: skip
    assert kinds == set(ADAPTERS)


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - OTHERS - {"trainjob"}))
def test_its_pods_are_injected(name: str) -> None:
    found = [result(pod) for pod in pods(DOCUMENTS[name])]
    declined = {"jobset": ["ignored"]}.get(name, [])
    assert found == ["injected"] * (len(found) - len(declined)) + declined and found


def test_a_train_jobs_pods_are_told_through_trainers_own_place() -> None:
    document = DOCUMENTS["trainjob"]
    operations = workloads.stamp("trainer.kubeflow.org", "TrainJob", document, {})
    made = jsonpatch.apply_patch(document, operations)
    text = yaml.safe_dump(made["spec"]["runtimePatches"])
    assert "stitchcore.io/optimize: 'true'" in text


def test_the_pod_is_only_looked_at_and_in_one_container() -> None:
    pod = copy.deepcopy(DOCUMENTS["pod"])
    decision = decide(pod, Situation(Namespace("team"), support.TRUST), support.release())
    made = jsonpatch.apply_patch(pod, decision.operations)
    train, upload = made["spec"]["containers"]
    assert {"name": "STITCH_MODE", "value": "observe"} in train["env"]
    assert upload == DOCUMENTS["pod"]["spec"]["containers"][1]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_kubernetes_own_kinds_are_valid(name: str) -> None:
    kubernetes_validate.validate(DOCUMENTS[name], "1.36", strict=True)


def test_the_policy_is_one() -> None:
    found = policy.decode(DOCUMENTS["policy"])
    assert found.spec.max_mode == "observe" and found.spec.priority == 10
