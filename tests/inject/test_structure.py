"""Every fault of a patched graph is found, named, and takes back its region alone.

The graphs are a real loop and a real step with branches (bench/structure.py), cut as a worker cuts
them; one region of a good patch is spoiled at a time.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from bench.structure import Patched, captured, loop_step, tiled
from stitchcore.inject import digest, patch, reasons, structure
from tests.tensorflow.graphs import random_graph

FLOAT, INT32 = 1, 3
Region = dict[str, Any]


@cache
def loop() -> Patched:
    return Patched(loop_step(), ("result",))


@cache
def branches() -> Patched:
    return Patched(captured("tensorflow/graphs/accumulate_cond.pb.xz"))


def one_region(whole: Patched, suits: Callable[[int], bool]) -> int:
    """A region of floats whose node's number in the original suits, by its place in the patch."""
    original = structure.Original(whole.graph)
    for place, region in enumerate(whole.patch["regions"]):
        node = original.read.number[whole.origins[f"stitch/abc/{region['name']}"]]
        kinds = [structure.types_of(attributes(region), name)[:1] for name in ("Tin", "Tout")]
        if suits(node) and kinds == [[FLOAT], [FLOAT]]:
            return place
    raise AssertionError("no region suits")


def in_loop(whole: Patched) -> int:
    inner = structure.Original(whole.graph).inner
    return one_region(whole, lambda node: inner[node] > 0)


def outside(whole: Patched) -> int:
    inner = structure.Original(whole.graph).inner
    return one_region(whole, lambda node: inner[node] == 0)


def in_branch(whole: Patched) -> int:
    names = structure.Original(whole.graph).read.names
    return one_region(whole, lambda node: "cond" in names[node])


def attributes(region: Region) -> Any:
    node = graph_pb2.GraphDef().node.add()
    node.ParseFromString(base64.b64decode(region["add"][0]["attr"]))
    return node


def encode(region: Region, node: Any) -> None:
    region["add"][0]["attr"] = base64.b64encode(node.SerializeToString()).decode()


def consumer_of(whole: Patched, region: Region) -> int:
    """A node that reads what the region makes."""
    made = next(new for _, new in region["rewire"] if ":" in new)
    port = int(made.partition(":")[2])
    name = f"stitch/abc/{region['name']}"
    wanted = name if port == 0 else f"{name}:{port}"
    found = next(n for n in whole.made.graph.node
                 if wanted in n.input and not n.name.startswith("stitch/"))  # fmt: skip
    return int(whole.numbering.ids[found.name])


def another_frame(whole: Patched, region: Region) -> None:
    region["add"][0]["inputs"][0] = f"{whole.numbering.ids['x']}:0"


def a_constant_without_frame(whole: Patched, region: Region) -> None:
    node = attributes(region)
    node.attr["Tin"].list.type.insert(0, FLOAT)
    encode(region, node)
    constant = graph_pb2.GraphDef().node.add()
    constant.attr["dtype"].type = FLOAT
    constant.attr["value"].tensor.dtype = FLOAT
    constant.attr["value"].tensor.float_val.append(1.0)
    region["add"][0]["inputs"].insert(0, f"+{region['name']}_c:0")
    region["add"].append({
        "name": f"{region['name']}_c", "op": "Const", "inputs": [],
        "device_of": region["add"][0]["device_of"],
        "attr": base64.b64encode(constant.SerializeToString()).decode()})  # fmt: skip


def a_control_edge_back(whole: Patched, region: Region) -> None:
    region["controls"].append([f"+{region['name']}", f"^{consumer_of(whole, region)}"])


def what_a_pass_needs_after_the_loop(whole: Patched, region: Region) -> None:
    """Only the rule for an Exit finds it: no edge leads from a pass's end to the Exit."""
    region["controls"].append([f"+{region['name']}", f"^{whole.numbering.ids['result']}"])


def another_type(whole: Patched, region: Region) -> None:
    node = attributes(region)
    node.attr["Tout"].list.type[0] = INT32
    encode(region, node)


def another_input_type(whole: Patched, region: Region) -> None:
    node = attributes(region)
    node.attr["Tin"].list.type[0] = INT32
    encode(region, node)


def a_port_that_is_not_there(whole: Patched, region: Region) -> None:
    pair = next(pair for pair in region["rewire"] if ":" in pair[1])
    pair[1] = f"+{region['name']}:9"


def no_rewire(whole: Patched, region: Region) -> None:
    region["rewire"] = [pair for pair in region["rewire"] if ":" not in pair[0]]


def alive_in_all_branches(whole: Patched, region: Region) -> None:
    """In the loop's frame, but whatever its conditions say."""
    original = structure.Original(whole.graph)
    read, home = original.read, region["add"][0]["device_of"]
    frame = next(
        original.inner[read.number[n]] for n, i in whole.numbering.ids.items() if i == home
    )
    free = next(
        name
        for name, kinds in whole.types.items()
        if kinds == [FLOAT] and original.outer[read.number[name]] == frame
        and not original.leaving[read.number[name]]
        and read.operations[read.number[name]] == "Enter"
    )  # fmt: skip
    node = attributes(region)
    del node.attr["Tin"].list.type[:]
    node.attr["Tin"].list.type.append(FLOAT)
    encode(region, node)
    region["add"][0]["inputs"] = [f"{whole.numbering.ids[free]}:0"]


MUTANTS: list[tuple[Callable[..., None], Callable[[], Patched], Callable[[Patched], int], str]] = [
    (another_frame, loop, in_loop, "is in no loop, not in loop"),
    (a_constant_without_frame, loop, in_loop, "is in no loop, not in loop"),
    (a_control_edge_back, loop, in_loop, "waits for itself"),
    (a_control_edge_back, loop, in_branch, "waits for itself"),
    (what_a_pass_needs_after_the_loop, loop, outside, "waits for itself"),
    (another_type, loop, in_loop, "is of type 3"),
    (another_input_type, loop, in_loop, "is of type 1, not 3"),
    (a_port_that_is_not_there, loop, in_loop, "is not an output"),
    (no_rewire, loop, in_loop, "does not exist"),
    (alive_in_all_branches, loop, in_branch, "not alive in the branches"),
]


def test_regions_are_spoiled_where_it_matters() -> None:
    assert not loop().made.taken_back and not branches().made.taken_back
    assert len(loop().patch["regions"]) > 2 and len(branches().patch["regions"]) > 2
    own = [n.op for n in loop().graph.node]
    assert {"Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond"} <= set(own)


@pytest.mark.parametrize(("spoil", "whole", "chosen", "what"), MUTANTS)
def test_a_fault_takes_its_region_back_and_no_other(
    spoil: Callable[..., None],
    whole: Callable[[], Patched],
    chosen: Callable[[Patched], int],
    what: str,
) -> None:
    patched = whole()
    wanted, place = copy.deepcopy(patched.patch), chosen(patched)
    region = wanted["regions"][place]
    spoil(patched, region)
    made = patched.apply(wanted)
    assert set(made.taken_back) == {region["name"]}
    assert what in str(made.taken_back[region["name"]])
    left = [one for n, one in enumerate(patched.patch["regions"]) if n != place]
    assert made.graph == patched.apply({"regions": left}).graph


def test_each_of_several_faults_takes_its_own_region() -> None:
    whole = loop()
    wanted = copy.deepcopy(whole.patch)
    places = {in_loop(whole), outside(whole)}
    for place in places:
        no_rewire(whole, wanted["regions"][place])
    found = whole.apply(wanted).taken_back
    assert set(found) == {wanted["regions"][place]["name"] for place in places}


def test_what_must_stay_and_has_no_stand_in_takes_the_region_back() -> None:
    graph = loop_step()
    known = Patched(graph)
    place = in_loop(known)
    names = {number: name for name, number in known.numbering.ids.items()}
    inner = known.patch["regions"][place]
    results = {old.partition(":")[0] for old, new in inner["rewire"] if ":" in new}
    lost = next(n for n in inner["remove"] if str(n) not in results)
    wanted = copy.deepcopy(known.patch)
    region = wanted["regions"][place]
    region["rewire"] = [pair for pair in region["rewire"] if pair[0] != f"^{lost}"]
    made = patch.apply(graph, known.numbering, wanted, "abc", (names[lost],), known.types)
    assert set(made.taken_back) == {region["name"]}
    operations = {node.name: node.op for node in made.graph.node}
    assert operations[names[lost]] == next(n.op for n in graph.node if n.name == names[lost])


def test_another_check_takes_a_region_back_too() -> None:
    whole = loop()
    place = in_loop(whole)
    region = whole.patch["regions"][place]["name"]

    def check(graph: Any) -> list[structure.Fault]:
        names = [node.name for node in graph.node if node.name == f"stitch/abc/{region}"]
        return [structure.Fault(name, "it names an unknown kernel") for name in names]

    assert set(whole.apply(whole.patch, (check,)).taken_back) == {region}


def test_a_fault_of_no_region_refuses_the_whole() -> None:
    whole = loop()
    with pytest.raises(reasons.Refused) as caught:
        whole.apply(whole.patch, (lambda graph: [structure.Fault("x", "it is odd")],))
    assert caught.value.reason == reasons.STRUCTURE


# ---- what a patch cannot make, but a mistake of ours could -----------------------------------
def small() -> Any:
    """A reference variable's update, a call, and a node colocated with another."""
    graph = graph_pb2.GraphDef()
    function = graph.library.function.add()
    function.signature.name = "f"
    function.signature.input_arg.add(name="a", type=FLOAT)
    for name, operation, inputs in (
        ("x", "Placeholder", []),
        ("v", "VariableV2", []),
        ("root", "Sqrt", ["x"]),
        ("twice", "Neg", ["root"]),
        ("update", "AssignSub", ["v", "twice"]),
        ("call", "PartitionedCall", ["twice"]),
        ("beside", "Exp", ["x"]),
    ):
        graph.node.add(name=name, op=operation).input.extend(inputs)
    graph.node[5].attr["f"].func.name = "f"
    graph.node[6].attr["_class"].list.s.append(b"loc:@root")
    return graph


TYPES = {"x": [FLOAT], "v": [FLOAT + 100], "root": [FLOAT], "twice": [FLOAT],
         "update": [FLOAT + 100], "call": [FLOAT], "beside": [FLOAT]}  # fmt: skip


def faults(change: Callable[[dict[str, Any], Any], None], preserve: tuple[str, ...] = ()) -> str:
    graph = small()
    original = structure.Original(graph)
    made = graph_pb2.GraphDef()
    made.CopyFrom(graph)
    change({node.name: node for node in made.node}, made)
    return "; ".join(map(str, structure.check(original, made, TYPES, {}, preserve)))


def test_graphs_as_they_were_have_no_fault() -> None:
    assert faults(lambda nodes, graph: None, ("beside",)) == ""


def test_a_reference_must_stay_one() -> None:
    def change(nodes: dict[str, Any], graph: Any) -> None:
        nodes["update"].input[0] = "twice"

    assert "update: input 0 is of type 1, and was of 101" in faults(change)


def test_a_name_is_there_once() -> None:
    def change(nodes: dict[str, Any], graph: Any) -> None:
        graph.node.add().CopyFrom(nodes["twice"])

    assert "twice: two nodes have this name" in faults(change)


def test_colocation_is_with_what_is_there() -> None:
    def change(nodes: dict[str, Any], graph: Any) -> None:
        nodes["twice"].input[0] = "x"
        graph.node.remove(nodes["root"])

    assert "beside: it is colocated with 'root', which was removed" in faults(change)


def test_a_call_gets_its_arguments() -> None:
    def change(nodes: dict[str, Any], graph: Any) -> None:
        nodes["call"].input.insert(0, "x")

    assert "'f' takes 1 arguments and gets 2" in faults(change)


def test_data_comes_before_control() -> None:
    def change(nodes: dict[str, Any], graph: Any) -> None:
        nodes["update"].input.insert(0, "^x")

    assert "a data input comes after control inputs" in faults(change)


def test_what_must_stay_is_there() -> None:
    def change(nodes: dict[str, Any], graph: Any) -> None:
        graph.node.remove(nodes["beside"])

    assert "beside: a node that must stay was removed" in faults(change, ("beside",))


def test_the_place_of_a_removed_node_is_taken_away() -> None:
    graph = small()
    numbering = digest.number(graph)
    node = graph_pb2.GraphDef().node.add()
    node.attr["Tin"].list.type.append(FLOAT)
    node.attr["Tout"].list.type.append(FLOAT)
    node.attr["table"].list.i.extend([1, 0, 0, 0, 0])
    root = numbering.ids["root"]
    region = {
        "name": "r", "remove": [root], "rewire": [[f"{root}:0", "+r:0"], [f"^{root}", "^+r"]],
        "controls": [], "add": [{
            "name": "r", "op": "StitchedFusion", "device_of": root,
            "inputs": [f"{numbering.ids['x']}:0"],
            "attr": base64.b64encode(node.SerializeToString()).decode()}]}  # fmt: skip
    made = patch.apply(graph, numbering, {"regions": [region]}, "abc", (), TYPES)
    assert not made.taken_back
    assert "_class" not in next(n for n in made.graph.node if n.name == "beside").attr


# ---- patches that are right ------------------------------------------------------------------
CHOICES = st.tuples(*(st.integers(0, 1000) for _ in range(4)))


@settings(max_examples=50)
@given(st.lists(CHOICES, min_size=4, max_size=40), st.data())
def test_right_patches_pass_with_any_regions_left_out(choices: Any, data: Any) -> None:
    whole = Patched(random_graph(choices))
    assert not whole.made.taken_back
    chosen = [one for one in whole.patch["regions"] if data.draw(st.booleans())]
    assert not whole.apply({"regions": chosen}).taken_back


class _Counted:
    """A node that counts how often something is read of it."""

    reads = 0

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        _Counted.reads += 1
        return getattr(self._node, name)


class _CountedGraph:
    def __init__(self, graph: Any) -> None:
        self.node, self.library = [_Counted(node) for node in graph.node], graph.library


def test_the_work_is_linear_in_the_nodes() -> None:
    reads = []
    for copies in (2, 4):
        whole = Patched(tiled(loop_step(), copies))
        _Counted.reads = 0
        original = structure.Original(_CountedGraph(whole.graph))
        made = _CountedGraph(whole.made.graph)
        assert not structure.check(original, made, whole.types, whole.origins)
        reads.append(_Counted.reads)
    assert reads[1] <= 2 * reads[0]
