"""The schema of the values: closed, explained, and the first to say what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from tests.helm import charts
from tests.helm.charts import CHART, COMBINATIONS

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
Object = dict[str, Any]
BELOW = re.compile(r"\.policy\.spec\.|\.additionalProperties$")
"""Kubernetes' own selectors; and values of a map, which is explained itself."""


def parts(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every schema below this one, with its path."""
    yield path, schema
    inner = [*schema.get("properties", {}).items(), *schema.get("definitions", {}).items()]
    inner += [(name, schema[name]) for name in ("items", "additionalProperties")
              if isinstance(schema.get(name), dict)]  # fmt: skip
    for name, one in inner:
        yield from parts(one, f"{path}.{name}")


def test_every_value_is_explained() -> None:
    silent = [path for path, one in parts(SCHEMA) if path and not one.get("description")]
    assert not [path for path in silent if not BELOW.search(path)]


def test_every_object_is_closed() -> None:
    """But for what has names of somebody else's: other charts' values, and pieces of other APIs."""
    for path, one in parts(SCHEMA):
        if one.get("type") == "object" and not one.get("x-open") and not one.get("x-free"):
            assert "additionalProperties" in one, path
            assert one["additionalProperties"] is not True, path
    free = {path for path, one in parts(SCHEMA) if one.get("x-open") or one.get("x-free")}
    assert free == {
        ".global", ".networkPolicy.metricsFrom.items", ".networkPolicy.kedaFrom.items",
        ".networkPolicy.externalEgress.items", ".worker.keda.triggers.items",
    }  # fmt: skip


def test_every_value_has_its_default_and_nothing_else_has() -> None:
    """A value that can be set stands in values.yaml, so that what it is can be read there."""
    jsonschema.Draft7Validator(SCHEMA).validate(DEFAULTS)

    def compared(path: str, schema: Object, value: Any) -> None:
        if "properties" in schema and not schema.get("x-whole"):
            assert set(value) == set(schema["properties"]), path
            for name, one in schema["properties"].items():
                compared(f"{path}.{name}", one, value[name])

    policy = SCHEMA["properties"].pop("policy")
    values = {name: value for name, value in DEFAULTS.items() if name != "policy"}
    issuer = SCHEMA["properties"]["certificates"]["properties"]["certManager"]
    issuer["properties"]["issuerRef"]["x-whole"] = True
    compared("", SCHEMA, values)
    SCHEMA["properties"]["policy"] = policy


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_combinations_fit(combination: str) -> None:
    values = yaml.safe_load((CHART / "ci" / f"{combination}-values.yaml").read_text())
    workers = values.get("workers", {})
    kept = {
        name: {**DEFAULTS["workers"].get(name, {}), **one} for name, one in workers.items() if one
    }
    given = {**values, "workers": kept}
    jsonschema.Draft7Validator(SCHEMA).validate(given)


DIGEST = f"sha256:{'ab' * 32}"
BAD = {
    "an unknown name": ("webhok: {replicas: 2}", "webhok"),
    "an unknown name below": ("webhook: {replica: 2}", "replica"),
    "a number in words": ("webhook: {replicas: two}", "/webhook/replicas"),
    "none": ("webhook: {replicas: 0}", "/webhook/replicas"),
    "a mode of nobody's": ("certificates: {mode: magic}", "/certificates/mode"),
    "a digest that is none": ("images: {worker: {digest: sha256:12}}", "/images/worker/digest"),
    "a store that is no URL": ("store: {url: bucket/folder}", "/store/url"),
    "a size that is none": ("store: {persistence: {size: big}}", "/store/persistence/size"),
    "an address without port": ("gateway: {address: host}", "/gateway/address"),
    "a worker without version": ("workers: {gpu: {replicas: 1}}", "tensorflow"),
    "a worker of an old version": (
        "workers: {gpu: {tensorflow: '2.14'}}", "/workers/gpu/tensorflow"
    ),
    "a worker's name that is none": ("workers: {GPU: {tensorflow: '2.15'}}", "GPU"),
    "none of a queue that the gateway does not know": (
        "workers: {cpu-tf221: {keda: {enabled: true, minReplicas: 0, triggers: [{type: cron}]}}}",
        "needed for keda.minReplicas: 0",
    ),
    "an image without a digest": (
        f"images: {{pinned: true, operator: {{digest: {DIGEST}}}, worker: {{digest: {DIGEST}}}, "
        f"runtime: {{digest: {DIGEST}}}}}", "images.pinned: docker.io/library/redis"
    ),
    "a policy's word": ("policy: {spec: {maxMode: everything}}", "/policy/spec/maxMode"),
    "a policy's name": ("policy: {spec: {maxMod: off}}", "maxMod"),
    "two brokers": ("broker: {existingSecret: {name: theirs}}", "set broker.bundled.enabled"),
    "no broker": ("broker: {bundled: {enabled: false}}", "broker.existingSecret.name"),
    "no certificate": (
        "certificates: {mode: existingSecret, existingSecret: {webhook: one}}",
        "certificates.existingSecret.gateway",
    ),
    "two stores": (
        "store: {url: 's3://a/b', persistence: {existingClaim: c}}", "two stores: give one"
    ),
    "a file of several gateways": ("gateway: {replicas: 2}", "ledger.existingSecret.name"),
    "two ledgers": (
        "ledger: {existingSecret: {name: a}, persistence: {existingClaim: b}}", "two ledgers"
    ),
    "a volume that one node mounts": ("store: {replicas: 2}", "ReadWriteMany"),
    "keda without a queue": (
        "workers: {cpu-tf221: {keda: {enabled: true}}}", "workers.cpu-tf221.target"
    ),
    "a name that is too long": (
        "workers: {a-worker-with-a-very-long-name-that-fits-nowhere-at-all: {tensorflow: '2.15'}}",
        "too long",
    ),
    "a test where nothing is injected": ("test: {namespace: kube-system}", "test.namespace"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(BAD))
def test_what_cannot_be_is_refused_by_its_name(case: str) -> None:
    values, word = BAD[case]
    with pytest.raises(charts.Refused) as refused:
        charts.rendered(values)
    assert word in str(refused.value)


def test_a_chart_above_may_have_globals_of_its_own() -> None:
    assert charts.rendered("global: {region: north}")


def test_null_drops_a_worker_of_the_defaults() -> None:
    kinds = [one["metadata"]["name"] for one in charts.of("gpus") if one["kind"] == "Deployment"]
    workers = {name for name in kinds if "worker" in name}
    assert workers == {"stitch-worker-a100-tf215", "stitch-worker-h100-tf221"}


def test_numbers_reach_the_programs_as_they_are() -> None:
    """Helm keeps large numbers as floats."""
    found = charts.objects(
        charts.rendered("store: {collect: {bytes: 1099511627776}}", "--set-json",
                        'workers.cpu-tf221.compile={"memoryBytes": 17179869184}')
    )  # fmt: skip
    text = json.dumps([spec for _, _, spec in charts.pods(found)])
    assert '"--bytes=1099511627776"' in text and '"--memory=17179869184"' in text
