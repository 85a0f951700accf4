"""What is pure of swap groups: places, decisions, words, and that a patch leaves collectives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stitchcore.inject import (
    collectives,
    coordination_service,
    graphs,
    reasons,
    redact,
    settings,
    swap_group,
    swap_group_member,
    swap_group_messages,
    wire,
)


def config(cluster: dict[str, Any], kind: str, index: object) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


WORKERS = {"worker": ["a:1", "b:1", "c:1"]}


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "size", "rank", "why"),
    [
        (WORKERS, "worker", 2, 3, 2, ""),
        ({**WORKERS, "chief": ["d:1"]}, "chief", 0, 4, 0, ""),
        ({**WORKERS, "chief": ["d:1"]}, "worker", 0, 4, 1, ""),
        ({**WORKERS, "ps": ["d:1"]}, "worker", 0, 3, 0, "TF_CONFIG names a ps"),
        (WORKERS, "evaluator", 0, 3, 0, "TF_CONFIG names a evaluator"),
        (WORKERS, "worker", 3, 3, 3, "TF_CONFIG names task 3 of 3"),
        (WORKERS, "worker", "x", 0, 0, "TF_CONFIG cannot be read"),
    ],
)
def test_a_place_is_what_tf_config_says(
    cluster: dict[str, Any], kind: str, index: object, size: int, rank: int, why: str
) -> None:
    found = settings.read({"TF_CONFIG": config(cluster, kind, index)}).group
    assert found is not None
    assert (found.size, found.rank) == (size, rank)
    assert found.why.startswith(why) and bool(found.why) == bool(why)
    assert found.beside == 1
    if not why:
        assert found.task == f"/job:{kind}/replica:0/task:{index}"


def test_replicas_have_one_cluster_and_others_another() -> None:
    names = [
        swap_group.place_of(config(cluster, "worker", index)) for cluster, index in
        ((WORKERS, 0), (WORKERS, 1), ({"worker": ["a:1", "b:1"]}, 0))
    ]  # fmt: skip
    found = [place.cluster for place in names if place is not None]
    assert found[0] == found[1] != found[2]
    assert swap_group.place_of("") is None
    assert settings.read({}).group is None


def test_replicas_of_one_machine_share_its_cores() -> None:
    cluster = {"chief": ["a:1"], "worker": ["a:2", "b:1", "[::1]:1"]}
    counts = [("chief", 0, 2), ("worker", 0, 2), ("worker", 1, 1), ("worker", 2, 1)]
    for kind, index, beside in counts:
        place = swap_group.place_of(config(cluster, kind, index))
        assert place is not None and place.beside == beside
    made = graph(x=[], y=["x"])
    assert graphs.devices(made, 8 / 2) == 4
    for number, node in enumerate(made.node):
        node.device = f"/job:worker/replica:0/task:{1 + 9 * number}/device:GPU:0"
    assert graphs.devices(made, 8) == 2
    assert graphs.devices(made, 8, "/job:worker/replica:0/task:1") == 1


def test_decisions_survive_their_text_and_nothing_else_does() -> None:
    decision = swap_group.Decision(swap_group.SWAP, 57, 3, 4, 297, 12345, "why")
    assert swap_group.decode(swap_group.encode(decision)) == decision
    for text in ("", "[]", "{}", '{"do": "swap", "agreed": -1}', '{"do": "x", "agreed": 1}',
                 '{"do": "drop", "agreed": true}'):  # fmt: skip
        with pytest.raises(reasons.Refused) as refused:
            swap_group.decode(text)
        assert refused.value.reason == reasons.SWAP_GROUP


def test_what_a_lying_gateway_answers_is_no_number() -> None:
    answer = {"group": {"state": "named", "latest_round": "2"}, "swap_at": -5}
    assert swap_group.heard_of(1, answer) == swap_group.Heard(1, "named", 0, 0, "")
    assert swap_group.heard_of(1, {"group": 7}).state == swap_group.GATHERING


def test_the_margin_is_so_many_seconds_of_steps() -> None:
    assert swap_group.margin_of([], 2) == 0
    assert swap_group.margin_of([10_000_000, 20_000_000, 9_000_000_000], 2) == 250
    assert swap_group.margin_of([10_000_000], 400) == 4000  # all of a large group speak less often
    assert swap_group.margin_of([1], 2) == swap_group.MOST_MARGIN
    assert swap_group.say_seconds(400) == 4.0 and swap_group.say_seconds(50) == 0.5


def test_a_word_is_said_at_once_when_it_says_something_new_and_else_now_and_then() -> None:
    said = swap_group_messages.Messages()
    assert said.due() is None
    assert said.put({"group": "g", "round": 1, "step": 3}, 0.5)
    assert said.first(100.0) == ("g", {"group": "g", "round": 1, "step": 3})
    assert said.first(100.4) is None and said.due() == 100.5
    assert not said.put({"group": "g", "round": 1, "step": 9}, 0.5)
    assert said.first(100.4) is None
    assert said.put({"group": "g", "round": 1, "step": 9, "confirm": 60}, 0.5)
    spoken = said.first(100.4)
    assert spoken is not None and spoken[1]["confirm"] == 60
    said.answered(*spoken, {"group": {"state": "committed"}, "swap_at": 60})
    assert said.heard("g") == swap_group.Heard(1, "committed", 60, 0, "")
    assert said.put({"group": "g", "round": 2, "step": 99}, 0.5)
    said.answered(*spoken, {"group": {"state": "committed"}, "swap_at": 60})
    assert said.heard("g") is None, "an answer to another round"
    said.end("g")
    assert said.due() is None


# Collectives


def graph(**inputs: list[str]) -> Any:
    """Nodes by name: those called all* are collectives, the others sums; in the order given."""
    from tensorflow.core.framework import graph_pb2

    made = graph_pb2.GraphDef()
    for name, sources in inputs.items():
        kind = "CollectiveReduceV2" if name.startswith("all") else "AddN"
        node = made.node.add(name=name, op=kind, device="/job:worker/replica:0/task:1/device:CPU:0")
        node.input.extend(sources)
        if kind != "AddN":
            node.attr["merge_op"].s = b"Add"
    return made


ORIGINAL = {
    "size": [], "key": [], "x": [], "y": ["x"],
    "all1": ["x", "size", "key"], "all2": ["y", "size", "key", "^all1"], "z": ["all1", "all2"],
}  # fmt: skip


ENDPOINT = wire.Endpoint("gateway", 443, "ca", "token")
JOINED = graph(**ORIGINAL)


@pytest.mark.parametrize(
    ("made", "text", "gateway", "strategy", "function", "reason"),
    [
        (JOINED, config(WORKERS, "worker", 0), ENDPOINT, True, True, None),
        (JOINED, config(WORKERS, "worker", 0), None, True, True, reasons.COLLECTIVE),
        (JOINED, config(WORKERS, "worker", 0), ENDPOINT, False, True, reasons.COLLECTIVE),
        (JOINED, config(WORKERS, "worker", 0), ENDPOINT, True, False, reasons.COLLECTIVE),
        (JOINED, config(WORKERS, "evaluator", 0), ENDPOINT, True, True, reasons.SWAP_GROUP),
        (JOINED, "", ENDPOINT, True, True, reasons.SWAP_GROUP),
        (graph(x=[]), config(WORKERS, "worker", 0), ENDPOINT, True, True, reasons.COLLECTIVE),
        (graph(x=[]), config(WORKERS, "worker", 0), ENDPOINT, False, True, None),
    ],
    ids=["joined", "no gateway", "no strategy", "session", "evaluator", "no TF_CONFIG",
         "apart from the others", "not of replicas"],
)  # fmt: skip
def test_which_steps_of_replicas_are_left(
    made: Any, text: str, gateway: wire.Endpoint | None, strategy: bool, function: bool,
    reason: str | None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    known = replace(settings.read({"TF_CONFIG": text}), gateway=gateway)
    nothing: Any = None
    parts = swap_group_member.Parts(known, *([nothing] * 7))
    monkeypatch.setattr(coordination_service, "joined", lambda: strategy)
    found = swap_group_member.Joined(parts).why_left(made, function)
    assert (found[0] if found is not None else None) == reason


def test_a_patch_may_feed_collectives_from_other_nodes() -> None:
    new = {**ORIGINAL, "x": [], "f": ["x"], "all2": ["f:0", "size:0", "key", "^all1"], "y": []}
    collectives.check(graph(**ORIGINAL), graph(**new))
    collectives.check(graph(x=[]), graph(x=[], y=["x"]))
    assert collectives.present(graph(**ORIGINAL)) and not collectives.present(graph(x=[]))


@pytest.mark.parametrize(
    ("devices", "size", "meet"),
    [("AB", 2, False), ("AB", 3, True), ("A", 2, True), ("AABB", 2, False), ("AAB", 2, True)],
    ids=["all here", "one elsewhere", "all others elsewhere", "two each", "one of two elsewhere"],
)
def test_replicas_of_one_graph_meet_no_others(devices: str, size: int, meet: bool) -> None:
    made = graph(x=[], size=[], key=[])
    for node, value in zip(list(made.node)[1:], (size, 7), strict=True):
        node.op = "Const"
        node.attr["value"].tensor.int_val.append(value)
    for number, device in enumerate(devices):
        node = made.node.add(name=f"all{number}", op="CollectiveReduceV2", device=device)
        node.input.extend(["x", "size", "key", "instance"])
    assert collectives.meet_others(made) is meet
    assert collectives.meet_others(graph(**ORIGINAL)), "whose group's size is not known"
    assert not collectives.meet_others(graph(x=[]))


@pytest.mark.parametrize(
    "change",
    [
        {"all2": ["y", "size", "x", "^all1"]},
        {"all2": ["y", "size", "^all1"]},
        {"all2": ["y", "size", "key"]},
        {"all1": ["y", "size", "key", "^all2"], "all2": ["y", "size", "key"]},
        {"all3": ["x", "size", "key"]},
        {"all2": None},
    ],
    ids=["another key", "a key less", "no order", "other order", "one more", "one less"],
)
def test_a_patch_that_touches_collectives_is_refused(change: dict[str, Any]) -> None:
    changed = {**ORIGINAL, **change}
    if change.get("all2", ()) is None:
        changed["z"] = ["all1"]
    new = graph(**{name: inputs for name, inputs in changed.items() if inputs is not None})
    with pytest.raises(reasons.Refused) as refused:
        collectives.check(graph(**ORIGINAL), new)
    assert refused.value.reason == reasons.COLLECTIVE


@pytest.mark.parametrize("field", ["device", "attr", "op"])
def test_a_collective_keeps_its_device_and_attributes(field: str) -> None:
    new = graph(**ORIGINAL)
    node = next(one for one in new.node if one.name == "all1")
    if field == "attr":
        node.attr["merge_op"].s = b"Max"
    else:
        setattr(node, field, "CollectiveGatherV2" if field == "op" else "/device:GPU:0")
    with pytest.raises(reasons.Refused):
        collectives.check(graph(**ORIGINAL), new)


def test_replicas_hand_in_one_graph() -> None:
    """Only the task that a device names differs between them."""
    one, other = graph(**ORIGINAL), graph(**ORIGINAL)
    for node in other.node:
        node.device = "/job:chief/replica:0/task:0/device:CPU:0"
    assert redact.structure(one) == redact.structure(other)
    assert redact.structure(one).node[0].device == "/job:localhost/replica:0/task:0/device:CPU:0"
