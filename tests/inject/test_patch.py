"""Patches: what a good one does, and that every doubtful one is refused."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from stitchcore.inject import digest, patch, reasons

graph_pb2 = pytest.importorskip("tensorflow.core.framework.graph_pb2")

FLOAT, RESOURCE = 1, 20
TYPES = {"x": [FLOAT], "v": [RESOURCE], "root": [FLOAT], "twice": [FLOAT], "product": [FLOAT],
         "update": [], "result": []}  # fmt: skip
TABLE = [1, 0, 1, 0, 0, 1, 0, 0, 1, 2, 0, 4, 1, 0, 0, 0, 2, 0, 0, 1, 2, 0, 1]


def graph() -> Any:
    made = graph_pb2.GraphDef()
    for name, operation, inputs in (
        ("x", "_Arg", []),
        ("v", "_Arg", []),
        ("root", "Sqrt", ["x"]),
        ("twice", "Neg", ["root:0", "^x"]),
        ("product", "MatMul", ["root", "twice"]),
        ("update", "AssignSubVariableOp", ["v", "twice"]),
        ("result", "_Retval", ["product", "^root"]),
    ):
        node = made.node.add(name=name, op=operation, device="/device:CPU:0")
        node.input.extend(inputs)
    made.node[1].attr["index"].i = 1
    return made


def attributes(inputs: list[int], outputs: list[int], **extra: int) -> str:
    node = graph_pb2.GraphDef().node.add()
    node.attr["Tin"].list.type.extend(inputs)
    node.attr["Tout"].list.type.extend(outputs)
    node.attr["kernel"].s = b"key"
    node.attr["table"].list.i.extend(TABLE)
    return base64.b64encode(node.SerializeToString()).decode()


def good(ids: Any) -> dict[str, Any]:
    """Sqrt and Neg become one kernel with two outputs: a region."""
    root, twice, x = ids["root"], ids["twice"], ids["x"]
    return {
        "name": "r0",
        "remove": [root, twice],
        "add": [{"name": "k", "op": "StitchedFusion", "device_of": root, "inputs": [f"{x}:0"],
                 "attr": attributes([FLOAT], [FLOAT, FLOAT])}],
        "rewire": [[f"{root}:0", "+k:0"], [f"{twice}:0", "+k:1"], [f"^{root}", "^+k"],
                   [f"^{twice}", "^+k"]],
        "controls": [["+k", f"^{ids['v']}"]],
    }  # fmt: skip


def apply(change: Any, preserve: tuple[str, ...] = ()) -> Any:
    made = graph()
    numbering = digest.number(made, preserve)
    regions = change(numbering.ids)
    wanted = {"regions": regions if isinstance(regions, list) else [regions]}
    return patch.apply(made, numbering, wanted, "abc", preserve, TYPES)


def node(result: Any, name: str) -> Any:
    return next(one for one in result.node if one.name == name)


def test_good_patch() -> None:
    applied = apply(good)
    assert applied.taken_back == {}
    result = applied.graph
    fused = node(result, "stitch/abc/k")
    assert (fused.op, fused.device) == ("StitchedFusion", "/device:CPU:0")
    assert list(fused.input) == ["x", "^v"]
    assert list(node(result, "product").input) == ["stitch/abc/k", "stitch/abc/k:1"]
    assert list(node(result, "update").input) == ["v", "stitch/abc/k:1"]
    assert list(node(result, "result").input) == ["product", "^stitch/abc/k"]
    assert {one.name for one in result.node} == {
        "x", "v", "product", "update", "result", "stitch/abc/k"
    }  # fmt: skip
    # Output 0 is only read by MatMul; output 1 becomes part of a variable's update.
    assert list(fused.attr["pool"].list.i) == [0]


def test_original_is_untouched() -> None:
    made = graph()
    before = made.SerializeToString(deterministic=True)
    numbering = digest.number(made)
    patch.apply(made, numbering, {"regions": [good(numbering.ids)]}, "abc", (), TYPES)
    assert made.SerializeToString(deterministic=True) == before


def with_update(ids: Any) -> dict[str, Any]:
    wanted = good(ids)
    entry = {"name": "u", "op": "StitchedFusion", "device_of": ids["update"],
             "inputs": [f"{ids['v']}:0", "+k:1"],
             "attr": attributes([RESOURCE, FLOAT], [])}  # fmt: skip
    wanted["add"].append(entry)
    wanted["remove"].append(ids["update"])
    wanted["rewire"].append([f"^{ids['update']}", "^+u"])
    return wanted


def test_preserved_update_gets_a_stand_in() -> None:
    result = apply(with_update, preserve=("update",)).graph
    assert node(result, "stitch/abc/u").op == "StitchedUpdate"
    stand_in = node(result, "update")
    assert stand_in.op == "NoOp" and list(stand_in.input) == ["^stitch/abc/u"]


def test_preserved_value_gets_a_stand_in() -> None:
    result = apply(good, preserve=("root",)).graph
    stand_in = node(result, "root")
    assert stand_in.op == "Identity" and stand_in.attr["T"].type == FLOAT
    assert list(stand_in.input) == ["stitch/abc/k", "^stitch/abc/k"]


def spoiled() -> dict[str, Any]:
    def no_rewire(p: Any, ids: Any) -> None:
        p["rewire"] = p["rewire"][:1]

    def unknown_id(p: Any, ids: Any) -> None:
        p["remove"].append(99)

    def boolean_id(p: Any, ids: Any) -> None:
        p["remove"].append(True)

    def bad_operation(p: Any, ids: Any) -> None:
        p["add"][0]["op"] = "PyFunc"

    def bad_name(p: Any, ids: Any) -> None:
        p["add"][0]["name"] = "k k"

    def bad_attributes(p: Any, ids: Any) -> None:
        p["add"][0]["attr"] = "////"

    def bad_base64(p: Any, ids: Any) -> None:
        p["add"][0]["attr"] = "%"

    def wrong_count(p: Any, ids: Any) -> None:
        p["add"][0]["inputs"] *= 2

    def wrong_type(p: Any, ids: Any) -> None:
        p["add"][0]["inputs"] = [f"{ids['v']}:0"]

    def missing_port(p: Any, ids: Any) -> None:
        p["rewire"][0][1] = "+k:7"

    def cycle(p: Any, ids: Any) -> None:
        p["add"][0]["inputs"] = [f"{ids['product']}:0"]

    def control_cycle(p: Any, ids: Any) -> None:
        p["controls"] = [["+k", f"^{ids['product']}"]]

    def mixed_rewire(p: Any, ids: Any) -> None:
        p["rewire"].append([f"^{ids['x']}", "+k:0"])

    def rewire_loop(p: Any, ids: Any) -> None:
        p["rewire"].append(["+k:0", f"{ids['root']}:0"])

    def twice(p: Any, ids: Any) -> None:
        p["add"].append(copy.deepcopy(p["add"][0]))

    def no_port(p: Any, ids: Any) -> None:
        p["rewire"][0][0] = str(ids["root"])

    def no_field(p: Any, ids: Any) -> None:
        del p["controls"]

    def short_table(p: Any, ids: Any) -> None:
        p["add"][0]["attr"] = attributes([FLOAT], [FLOAT, FLOAT])
        made = graph_pb2.GraphDef().node.add()
        made.ParseFromString(base64.b64decode(p["add"][0]["attr"]))
        del made.attr["table"].list.i[4:]
        p["add"][0]["attr"] = base64.b64encode(made.SerializeToString()).decode()

    return {f.__name__: f for f in (
        no_rewire, unknown_id, boolean_id, bad_operation, bad_name, bad_attributes, bad_base64,
        wrong_count, wrong_type, missing_port, cycle, control_cycle, mixed_rewire, rewire_loop,
        twice, no_port, no_field, short_table)}  # fmt: skip


FAULTS = frozenset(
    {"no_rewire", "wrong_count", "wrong_type", "missing_port", "cycle", "control_cycle",
     "rewire_loop", "short_table"}
)  # fmt: skip
"""A region's: it is taken back. All else no worker writes, and the patch is refused whole."""


@pytest.mark.parametrize("name", spoiled())
def test_doubt_is_refused(name: str) -> None:
    def change(ids: Any) -> dict[str, Any]:
        wanted = good(ids)
        spoiled()[name](wanted, ids)
        return wanted

    with pytest.raises(reasons.Refused) as caught:
        apply(change)
    assert caught.value.reason == (reasons.STRUCTURE if name in FAULTS else reasons.BAD_ARTIFACT)


def test_preserved_without_stand_in_is_refused() -> None:
    def change(ids: Any) -> dict[str, Any]:
        wanted = with_update(ids)
        wanted["rewire"] = [pair for pair in wanted["rewire"] if pair[0] != f"^{ids['update']}"]
        return wanted

    with pytest.raises(reasons.Refused, match="must stay"):
        apply(change, preserve=("update",))
