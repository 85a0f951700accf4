"""Helm 3 renders what Helm 4 does, and refuses what it refuses."""

from __future__ import annotations

import pytest

from tests.helm import charts
from tests.helm.charts import CHART, COMBINATIONS, CRDS
from tests.tiers import slow_but

HELM3 = "helm3"


def test_it_is_helm_3() -> None:
    assert charts.helm("version", "--short", name=HELM3).startswith("v3.")
    assert charts.helm("version", "--short").startswith("v4.")


@pytest.mark.parametrize("combination", slow_but("default", of=COMBINATIONS))
def test_every_combination_is_linted_and_rendered_to_the_same_objects(combination: str) -> None:
    values = CHART / "ci" / f"{combination}-values.yaml"
    charts.helm("lint", "--strict", str(CHART), f"--values={values}", name=HELM3)
    made = charts.objects(charts.rendered(values.read_text(), by=HELM3))
    assert by_name(made) == by_name(charts.of(combination))


def test_the_definitions_are_the_same() -> None:
    charts.helm("lint", "--strict", str(CRDS), name=HELM3)
    texts = [charts.helm("template", "crds", str(CRDS), name=name) for name in ("helm", HELM3)]
    ours, theirs = (by_name(charts.objects(text)) for text in texts)
    assert len(ours) == 2 and ours == theirs


@pytest.mark.parametrize("values", ["webhok: {}", "webhook: {replicas: many}", "workers: {a: {}}"])
def test_wrong_values_are_refused_by_both(values: str) -> None:
    for name in ("helm", HELM3):
        with pytest.raises(charts.Refused, match=values.partition(":")[0]):
            charts.rendered(values, by=name)


def by_name(found: list[charts.Object]) -> dict[tuple[str, str, str], charts.Object]:
    """Objects in no order: the two sort hooks differently."""
    named = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in found
    }
    assert len(named) == len(found)
    return named
