"""Keys of requests and names of queues: what an answer depends on tells two requests apart."""

from __future__ import annotations

from typing import Any

import pytest

from stitchcore.artifact.keys import request_key, settings_text
from stitchcore.service.queues import queue_arguments, queue_name

ASKED: dict[str, Any] = {
    "digest": "d",
    "target": "cpu-x86-64-v4",
    "tf": "2.21",
    "abi": 1,
    "preserve": (3, 12),
}


@pytest.mark.parametrize(
    "other",
    [
        {"digest": "e"},
        {"tf": "2.15"},
        {"target": "cpu-x86-64-v3"},
        {"abi": 2},
        {"preserve": (31, 2)},
        {"xla": True},
        {"deterministic": True},
        {"tenant": "a"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_an_answer_depends_on_changes_the_key(other: dict[str, Any]) -> None:
    assert request_key(**{**ASKED, **other}) != request_key(**ASKED)


def test_artifacts_of_two_tenants_are_two() -> None:
    texts = {settings_text("planner=x", ["n"], tenant) for tenant in ("", "a", "b")}
    assert len(texts) == 3


def test_the_order_of_preserved_nodes_does_not() -> None:
    assert request_key(**{**ASKED, "preserve": (12, 3)}) == request_key(**ASKED)


def test_queues_are_named_by_target_and_minor_version() -> None:
    assert queue_name("cpu-x86-64-v4", "2.21.0") == "stitch.cpu-x86-64-v4.tf2.21"
    assert queue_name("sm_90", "2.15") == "stitch.sm_90.tf2.15"
    for wrong in ("1.15", "2", "two"):
        with pytest.raises(ValueError, match="no version"):
            queue_name("cpu-x86-64-v4", wrong)


def test_queues_are_quorum_queues_on_rabbitmq_only() -> None:
    assert queue_arguments("amqp://localhost//") == {"x-queue-type": "quorum"}
    assert queue_arguments("redis://localhost/0") == {}
