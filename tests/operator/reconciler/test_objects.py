"""The reconciler's objects: valid, no more than it needs, and never apart from the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from stitch_operator.reconciler import breakers, objects
from stitch_operator.reconciler.cluster import KINDS
from stitch_operator.reconciler.objects import VIEW
from stitch_operator.reconciler.records import (
    NAME_LENGTH,
    TYPES,
    WorkloadReference,
    name_of,
)
from stitch_operator.reconciler.status import ORDER
from tests.operator.webhook import support

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
RULES = [
    rule
    for role in objects.roles(support.release())
    for rule in role["rules"]
    if role["metadata"]["name"].endswith("-reconciler")
]


def test_the_objects_are_valid() -> None:
    for one in [objects.job_definition(), *objects.roles(support.release())]:
        kubernetes_validate.validate(one, "1.36", strict=True)


def test_it_may_write_its_own_objects_and_nothing_else() -> None:
    writes = {
        (verb, resource)
        for rule in RULES
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if verb not in ("get", "list", "watch")
    }
    assert writes == {
        ("create", "events"),
        ("create", "stitchedjobs"),
        ("patch", "stitchedjobs/status"),
        ("create", "configmaps"),
        ("patch", "configmaps"),
        ("create", "leases"),  # who acts among several (election.py)
        ("update", "leases"),
    }
    assert not any("*" in str(rule) or "secrets" in rule["resources"] for rule in RULES)


def test_who_may_view_a_namespace_may_read_its_jobs_and_no_more() -> None:
    [viewed] = [one for one in objects.roles(support.release()) if one["metadata"]["name"] == VIEW]
    labels = viewed["metadata"]["labels"]
    assert labels["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    [rule] = viewed["rules"]
    assert rule["resources"] == ["stitchedjobs"] and set(rule["verbs"]) == {"get", "list", "watch"}


def test_every_kind_with_an_adapter_is_watched() -> None:
    watched = {(rule["apiGroups"][0], name) for rule in RULES for name in rule["resources"]}
    assert {(one.group, one.resource) for one in KINDS} <= watched


def test_columns_are_those_of_the_design() -> None:
    [version] = objects.job_definition()["spec"]["versions"]
    wide = [one["name"] for one in version["additionalPrinterColumns"] if not one.get("priority")]
    assert wide == ["Workload", "Phase", "Speedup", "GPU-h saved", "Replicas", "Reason", "Age"]
    schema: Any = version["schema"]["openAPIV3Schema"]
    for column in version["additionalPrinterColumns"]:
        at = schema["properties"]
        path = column["jsonPath"].strip(".").split(".")
        for name in path[:-1] if path[0] != "metadata" else ():
            at = at[name]["properties"]
        assert path[0] == "metadata" or path[-1] in at


@pytest.mark.parametrize("name", ["train", "a" * 253, "a." * 126])
def test_names_are_names(name: str) -> None:
    uid = "0123abcd-0000-0000-0000-000000000000"
    made = name_of(WorkloadReference(api_version="batch/v1", kind="Job", name=name, uid=uid))
    assert made.startswith("job-") and made.endswith("-0123abcd")
    assert len(made) <= NAME_LENGTH
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", made)
    event = f"{made}.{max(map(str.lower, TYPES), key=len)}.{10**6}"
    assert len(event) <= 253


def test_the_page_has_phases_in_the_order_that_decides() -> None:
    table = PAGE.split("| phase | meaning |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*ORDER]


def test_the_page_names_every_phase_event_and_limit() -> None:
    for word in (*ORDER, *TYPES):
        assert f"`{word}`" in PAGE, word
    assert f"{int(breakers.IMAGE_SECONDS / 60)} minutes" in PAGE
    assert f"{int(breakers.EARLY_SECONDS / 60)} minutes" in PAGE
