"""Every case of pods/: pod in, pod out; and what holds of all of them."""

from __future__ import annotations

import re
from dataclasses import replace

import kubernetes_validate
import pytest

from stitch_operator.webhook.injection import decide
from stitch_operator.webhook.reasons import Reason
from stitch_operator.webhook.trust import Trust
from tests.operator.webhook import reference, support

BY_CALLER = {Reason.INTERNAL, Reason.NOT_READY}
"""Given by the application, not by a decision (test_app.py)."""


@pytest.mark.parametrize("name", support.CASES)
def test_pods_become_what_is_written(name: str) -> None:
    case = support.case(name)
    decision = decide(case.given, case.situation, case.release)
    assert support.plain(support.applied(case.given, decision)) == case.expected
    assert decision.result == case.result
    assert (decision.reason.word if decision.reason else None) == case.reason


@pytest.mark.parametrize("name", support.CASES)
def test_twice_is_once(name: str) -> None:
    case = support.case(name)
    once = support.injected(case.given, case.situation, case.release)
    again = decide(once, case.situation, case.release)
    assert again.operations == ()
    assert again.result in ({"injected": "already"}.get(case.result, case.result),)


@pytest.mark.slow
@pytest.mark.parametrize("name", support.CASES)
def test_the_api_server_would_take_them(name: str) -> None:
    case = support.case(name)
    made = support.injected(case.given, case.situation, case.release)
    document = {"apiVersion": "v1", "kind": "Pod", **made}
    kubernetes_validate.validate(document, "1.36", strict=True)


@pytest.mark.parametrize("name", support.CASES)
def test_class_and_totals_are_unchanged(name: str) -> None:
    case = support.case(name)
    made = support.injected(case.given, case.situation, case.release)
    for kind in ("requests", "limits"):
        assert reference.totals(made, kind) == reference.totals(case.given, kind)
    assert reference.service_class(made) == reference.service_class(case.given)


@pytest.mark.parametrize("name", support.CASES)
def test_what_is_added_satisfies_restricted(name: str) -> None:
    case = support.case(name)
    made = support.injected(case.given, case.situation, case.release)
    ours = [one for one in made["spec"].get("initContainers", []) if "stitchcore" in one["name"]]
    assert reference.restricted(made, ours) == []


def test_every_reason_has_a_case() -> None:
    found = {support.case(name).reason for name in support.CASES}
    assert {reason.word for reason in set(Reason) - BY_CALLER} <= found
    assert len(support.CASES) >= 40


def test_the_hash_follows_the_release() -> None:
    case = support.case("one_container")

    def written(**changes: str) -> str:
        made = support.injected(case.given, case.situation, support.release(**changes))
        return str(made["metadata"]["annotations"]["stitchcore.io/injected"])

    assert re.fullmatch(r"1\.2\.3-[0-9a-f]{12}", written())
    assert written() == written()
    assert written(image="other@sha256:2") != written()


def test_the_hash_follows_whom_pods_trust() -> None:
    case = support.case("one_container")

    def written(trust: Trust) -> str:
        made = support.injected(case.given, replace(case.situation, trust=trust), case.release)
        return str(made["metadata"]["annotations"]["stitchcore.io/injected"])

    before = case.situation.trust
    after = [replace(before, authorities=2 * support.CA), replace(before, public_keys=("b" * 64,))]
    assert len({written(one) for one in (before, *after)}) == 3


def test_a_skip_says_what_why_and_what_to_do() -> None:
    case = support.case("two_containers")
    text = decide(case.given, case.situation, case.release).text
    assert text.startswith("stitchcore: ambiguous_container: it has several containers")
    assert "(a, b); to mend it: name it: annotation stitchcore.io/container-names" in text


def test_a_namespace_whose_cluster_chooses_users_gets_no_user() -> None:
    case = support.case("one_container")
    name = "openshift.io/sa.scc.uid-range"
    namespace = type(case.situation.namespace)("team", {}, {name: "1000650000/10000"})
    situation = replace(case.situation, namespace=namespace)
    made = support.injected(case.given, situation, case.release)
    context = made["spec"]["initContainers"][0]["securityContext"]
    assert "runAsUser" not in context
    assert context["runAsNonRoot"] is True
