"""Numbering: blind to names, order and history; sensitive to everything that means something."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.inject import digest
from tests.calls import calls

graph_pb2 = pytest.importorskip("tensorflow.core.framework.graph_pb2")


def make(edges: list[tuple[str, list[int]]]) -> Any:
    """Node i has an op and data inputs of lower number."""
    graph = graph_pb2.GraphDef()
    for i, (operation, inputs) in enumerate(edges):
        node = graph.node.add(name=f"n{i}", op=operation)
        node.input.extend(f"n{k}" for k in inputs)
        node.attr["T"].type = 1
    return graph


def renamed(graph: Any, seed: int) -> tuple[Any, dict[str, str]]:
    """Another process's version: other names, other order."""
    shuffle = random.Random(seed)
    names = [node.name for node in graph.node]
    new = [f"model_{seed}/x{i}" for i in range(len(names))]
    shuffle.shuffle(new)
    table = dict(zip(names, new, strict=True))
    nodes = list(graph.node)
    shuffle.shuffle(nodes)
    other = type(graph)()
    for node in nodes:
        copy = other.node.add()
        copy.CopyFrom(node)
        copy.name = table[node.name]
        del copy.input[:]
        for reference in node.input:
            name, port = digest.parse_reference(reference)
            prefix, suffix = ("^", "") if port < 0 else ("", f":{port}" if port else "")
            copy.input.append(prefix + table[name] + suffix)
        copy.attr["_class"].list.s.append(f"loc:@{seed}".encode())
    return other, table


@st.composite
def graphs(draw: st.DrawFn) -> Any:
    """Distinct constants as leaves, so that ties come from structure only."""
    count = draw(st.integers(2, 14))
    edges = []
    for i in range(count):
        arity = draw(st.integers(0, min(2, i)))
        inputs = [draw(st.integers(0, i - 1)) for _ in range(arity)]
        edges.append((draw(st.sampled_from("ABC")), inputs))
    graph = make(edges)
    for i, node in enumerate(graph.node):
        if not node.input:
            node.attr["index"].i = i
    return graph


@pytest.mark.slow
@settings(max_examples=200)
@given(graphs(), st.integers(0, 10**6))
def test_equal_digests_mean_an_isomorphism(graph: Any, seed: int) -> None:
    other, table = renamed(graph, seed)
    here, there = digest.number(graph), digest.number(other)
    assert here.digest == there.digest
    back = {number: name for name, number in there.ids.items()}
    mapped = {name: back[number] for name, number in here.ids.items()}
    nodes = {node.name: node for node in other.node}
    for node in graph.node:  # the ids themselves are an isomorphism, tied nodes included
        image = nodes[mapped[node.name]]
        assert image.op == node.op
        assert list(image.input) == [mapped[name] for name in node.input]
    assert sorted(here.ids.values()) == list(range(len(graph.node)))
    assert set(mapped.values()) == set(table.values())


def test_twins_are_told_apart_by_their_parents_children() -> None:
    """Grandchildren that look alike until one knows how many siblings each has."""
    graph = make([("A", inputs) for inputs in ([], [0], [0], [], [], [1], [1], [], [], [2])])
    for i in (0, 3, 4, 7, 8):
        graph.node[i].attr["index"].i = i
    for seed in range(20):
        assert digest.number(renamed(graph, seed)[0]).digest == digest.number(graph).digest


BASE = [("Arg", []), ("Arg", []), ("Mul", [0, 1]), ("Sub", [2, 0]), ("Out", [3])]


def changes() -> dict[str, Any]:
    def swap(graph: Any) -> None:
        graph.node[3].input[:] = ["n0", "n2"]

    def port(graph: Any) -> None:
        graph.node[3].input[0] = "n2:1"

    def attribute(graph: Any) -> None:
        graph.node[2].attr["T"].type = 2

    def control(graph: Any) -> None:
        graph.node[4].input.append("^n0")

    def device(graph: Any) -> None:
        graph.node[2].device = "/device:GPU:0"

    def shape(graph: Any) -> None:
        graph.node[2].attr["_output_shapes"].list.shape.add().dim.add(size=3)

    return {f.__name__: f for f in (swap, port, attribute, control, device, shape)}


@pytest.mark.parametrize("name", changes())
def test_meaning_changes_the_digest(name: str) -> None:
    graph = make(BASE)
    graph.node[1].attr["index"].i = 1
    before = digest.number(graph).digest
    changes()[name](graph)
    assert digest.number(graph).digest != before


def test_preserved_nodes_count() -> None:
    graph = make(BASE)
    assert digest.number(graph).digest != digest.number(graph, ["n3"]).digest


def with_dims(first: int, second: int) -> Any:
    graph = make(BASE)
    for i, size in ((0, first), (1, second)):
        graph.node[i].attr["_output_shapes"].list.shape.add().dim.add(size=size)
        graph.node[i].attr["index"].i = i
    return graph


def test_symbolic_dimensions_matter_by_equality_only() -> None:
    same = digest.number(with_dims(-7, -7)).digest
    assert same == digest.number(with_dims(-20, -20)).digest
    assert same != digest.number(with_dims(-7, -8)).digest
    assert same != digest.number(with_dims(-1, -1)).digest
    assert same != digest.number(with_dims(4, 4)).digest


def test_shared_variable_differs_from_two() -> None:
    graphs_ = []
    for second in (b"v", b"w"):
        graph = make([("Var", []), ("Var", []), ("Mul", [0, 1])])
        graph.node[0].attr["shared_name"].s = b"v"
        graph.node[1].attr["shared_name"].s = second
        graphs_.append(digest.number(graph).digest)
    assert graphs_[0] != graphs_[1]


def test_functions_count_by_content() -> None:
    def build(name: str, inner: str, operation: str) -> str:
        graph = make([("Arg", []), ("Call", [0])])
        graph.node[1].attr["f"].func.name = name
        function = graph.library.function.add()
        function.signature.name = name
        function.signature.input_arg.add(name="x", type=1)
        function.signature.output_arg.add(name="y", type=1)
        body = function.node_def.add(name=inner, op=operation)
        body.input.append("x")
        function.ret["y"] = f"{inner}:z:0"
        return digest.number(graph).digest

    assert build("f_1", "a", "Sqrt") == build("f_29", "b", "Sqrt")
    assert build("f_1", "a", "Sqrt") != build("f_1", "a", "Exp")


def calling(body: list[tuple[str, str]]) -> Any:
    """A graph that calls a function of argument x whose last node is what it returns."""
    graph = make([("Call", [])])
    graph.node[0].attr["f"].func.name = "f"
    function = graph.library.function.add()
    function.signature.name = "f"
    function.signature.input_arg.add(name="x", type=1)
    function.signature.output_arg.add(name="y", type=1)
    for name, source in body:
        function.node_def.add(name=name, op="Sqrt").input.append(source)
    function.ret["y"] = f"{body[0][0]}:z:0"
    return graph


def chained(count: int) -> list[tuple[str, str]]:
    """A function's nodes, each reading the one before."""
    return [(f"b{i}", f"b{i - 1}:z:0" if i else "x") for i in range(count)]


@given(st.permutations(chained(6)))
def test_the_order_of_a_functions_nodes_does_not_matter(body: list[tuple[str, str]]) -> None:
    """The digest stands in keys of requests and artifacts: another one would miss them all."""
    graph = calling(body)
    graph.library.function[0].ret["y"] = "b5:z:0"
    expected = "1535e16a1414cd9480260c27806821b71617a1b6dbc4edf044616873163e8dd8"
    assert digest.number(graph).digest == expected


def test_numbering_functions_is_linear_work_in_any_order() -> None:
    small, large = (calling(chained(count)[::-1]) for count in (500, 4000))
    assert calls(lambda: digest.number(large)) < 9 * calls(lambda: digest.number(small))


@pytest.mark.parametrize("source", ["b1:z:0", "nowhere"])
def test_a_functions_node_that_waits_for_ever_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="cycle"):
        digest.number(calling([("b0", source), ("b1", "b0:z:0"), ("b2", "x")]))


def test_loops_and_cycles() -> None:
    graph = make([("Enter", []), ("Merge", [0]), ("NextIteration", [1])])
    graph.node[1].input.append("n2")
    assert len(digest.number(graph).ids) == 3
    cycle = make([("A", []), ("B", [0]), ("C", [1])])
    cycle.node[0].input.append("n2")
    with pytest.raises(ValueError, match="cycle"):
        digest.number(cycle)
    dangling = make([("A", [])])
    dangling.node[0].input.append("nowhere")
    with pytest.raises(ValueError, match="does not exist"):
        digest.number(dangling)


def test_an_exit_follows_its_loops_passes() -> None:
    """One node that reads the loop's exit and feeds its passes: no forward cycle, yet it waits for
    itself, and an executor would end without having run it."""
    kinds = ["A", "Enter", "Merge", "Switch", "NextIteration", "Exit", "Both", "Enter"]
    inputs = [[], [0], [1], [2], [3], [3], [5], [6]]
    graph = make(list(zip(kinds, inputs, strict=True)))
    for number in (1, 7):
        graph.node[number].attr["frame_name"].s = b"loop"
    graph.node[2].input.append("n4")
    graph.node[4].input.append("^n7")
    edges = digest.edges_of(graph.node)
    frames = digest.frames_of(graph.node, edges, digest.topological(graph.node, edges))
    ends = digest.loop_ends(graph.node, edges, frames)
    assert ends == {5: [4]}
    with pytest.raises(ValueError, match="cycle"):
        digest.completion_order(graph.node, edges, ends)
    del graph.node[4].input[-1]
    edges = digest.edges_of(graph.node)
    order = digest.completion_order(graph.node, edges, ends)
    assert order.index(5) > order.index(4)


def chain(count: int) -> Any:
    return make([("Arg", [])] + [("Mul", [i, max(0, i - 3)]) for i in range(count - 1)])


def test_numbering_is_linear_work() -> None:
    """Eight times the nodes make about eight times the calls."""
    small, large = chain(500), chain(4000)
    assert calls(lambda: digest.number(large)) < 9 * calls(lambda: digest.number(small))
