"""What holds of any pod: once is twice, totals and class stay, nothing of the user's is lost."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stitch_operator import quantity
from stitch_operator.webhook import resources
from stitch_operator.webhook.injection import Situation, decide
from stitch_operator.webhook.policy import Namespace
from tests.operator.webhook import reference, support
from tests.operator.webhook.strategies import pods

RANGES = [
    [],
    [{"type": "Container", "min": {"cpu": "20m", "memory": "8Mi"}}],
    [{"type": "Container", "max": {"cpu": "50m"}}],
]
SITUATIONS = [
    Situation(
        Namespace("team"), support.TRUST, limit_ranges=resources.ranges({"spec": {"limits": lines}})
    )
    for lines in RANGES
]
RELEASES = [support.release(), support.release(delivery="imageVolume")]
MANY = settings(max_examples=200)
where = given(pods(), st.sampled_from(SITUATIONS), st.sampled_from(RELEASES))
Pod = dict[str, Any]


@pytest.mark.slow
@MANY
@where
def test_totals_and_class_are_unchanged(pod: Pod, situation: Situation, release: Any) -> None:
    made = support.injected(pod, situation, release)
    for kind in ("requests", "limits"):
        before, after = reference.totals(pod, kind), reference.totals(made, kind)
        assert {k: v for k, v in after.items() if v} == {k: v for k, v in before.items() if v}
    assert reference.service_class(made) == reference.service_class(pod)
    event(reference.service_class(pod))


@pytest.mark.slow
@MANY
@where
def test_ours_asks_what_admission_takes(pod: Pod, situation: Situation, release: Any) -> None:
    """Requests within limits, every resource that the pod bounds is bounded, LimitRanges hold, and
    a limit is no larger a multiple of its request than the pod's."""
    made = support.injected(pod, situation, release)
    ours = [c for c in made["spec"].get("initContainers", []) if "stitchcore" in c["name"]]
    for one in ours:
        requests = reference.quantities(one, "requests")
        limits = reference.quantities(one, "limits")
        assert all(value <= limits.get(name, value) for name, value in requests.items())
        assert set(requests) == set(reference.totals(pod, "requests")) & set(resources_of_ours())
        assert set(limits) == set(reference.totals(pod, "limits")) & set(resources_of_ours())
        whole = {kind: reference.totals(pod, kind) for kind in ("requests", "limits")}
        for name in set(requests) & set(limits):
            if requests[name] and whole["limits"][name] >= whole["requests"][name]:
                times = whole["limits"][name] / whole["requests"][name]
                assert float(limits[name] / requests[name]) <= float(times) * 1.001
        for line in situation.limit_ranges:
            for name, least in line.least.items():
                assert all(Fraction(v[name]) >= least for v in (requests, limits) if name in v)


def resources_of_ours() -> list[str]:
    return list(support.release().wanted)


@pytest.mark.slow
@MANY
@where
def test_twice_is_once_and_always_the_same(pod: Pod, situation: Situation, release: Any) -> None:
    given_pod = copy.deepcopy(pod)
    first = decide(pod, situation, release)
    assert pod == given_pod
    event(f"{first.result} {first.reason.word if first.reason else ''}")
    assert decide(copy.deepcopy(pod), situation, release) == first
    assert decide(support.applied(pod, first), situation, release).operations == ()


@pytest.mark.slow
@MANY
@where
def test_nothing_of_the_users_is_lost(pod: Pod, situation: Situation, release: Any) -> None:
    made = support.injected(pod, situation, release)
    assert without_ours(made) == emptied(pod)


def without_ours(pod: Pod) -> Pod:
    """The pod with everything of ours taken out again; variables have a test of their own."""
    made = emptied(pod)
    ours = ("stitchcore.io/injected", "stitchcore.io/gateway-ca", "stitchcore.io/workload",
            "stitchcore.io/skipped", "stitchcore.io/skipped-containers")  # fmt: skip
    for name in ours:
        made["metadata"]["annotations"].pop(name, None)
    spec = made["spec"]
    for holder, field in [(spec, "initContainers"), (spec, "volumes")] + [
        (one, "volumeMounts") for one in spec["containers"]
    ]:
        holder[field] = [one for one in holder[field] if "stitchcore-" not in one["name"]]
    return made


def emptied(pod: Pod) -> Pod:
    """Without variables; an absent list and an empty one are the same."""
    made = copy.deepcopy(pod)
    made["spec"].setdefault("initContainers", [])
    for one in made["spec"]["containers"]:
        one.setdefault("volumeMounts", [])
        one.pop("env", None)
    return made


@pytest.mark.slow
@MANY
@where
def test_variables_that_the_user_set_stay(pod: Pod, situation: Situation, release: Any) -> None:
    made = support.injected(pod, situation, release)
    for before, after in zip(pod["spec"]["containers"], made["spec"]["containers"], strict=True):
        present = before.get("env", [])
        assert [entry["name"] for entry in after.get("env", [])][: len(present)] == [
            entry["name"] for entry in present
        ]
        for entry, now in zip(present, after.get("env", []), strict=False):
            assert entry == now or (
                entry["name"] == "PYTHONPATH" and now["value"].endswith(entry.get("value", ""))
            )
        added = [entry["name"] for entry in after.get("env", [])][len(present) :]
        assert len(set(added)) == len(added)
        assert not set(added) & {entry["name"] for entry in present}


@pytest.mark.slow
@settings(max_examples=60)
@where
def test_the_schema_holds(pod: Pod, situation: Situation, release: Any) -> None:
    made = support.injected(pod, situation, release)
    document = {"apiVersion": "v1", "kind": "Pod", **made}
    kubernetes_validate.validate(document, "1.36", strict=True)


@given(st.integers(0, 10**15), st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Gi", "e3"]))
def test_quantities_are_exact(number: int, suffix: str) -> None:
    sizes = {"": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
             "k": 1000, "M": 10**6, "Ki": 1024, "Gi": 2**30, "e3": 1000}  # fmt: skip
    exact = number * Fraction(sizes[suffix])
    assert quantity.parse(f"{number}{suffix}") == exact
    assert quantity.parse(number) == number
    assert exact - Fraction(1, 1000) < quantity.parse(quantity.cores(exact)) <= exact
    assert exact - 1 < quantity.parse(quantity.whole(exact)) <= exact
