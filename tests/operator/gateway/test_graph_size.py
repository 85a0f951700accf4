"""A graph is counted on the wire before it is parsed: what would grow in memory is never parsed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.gateway import graph_size
from stitch_operator.gateway.graph_size import Size, size_of, too_large
from stitch_operator.gateway.wire import MESSAGES
from tests import lean
from tests.operator.gateway.support import graph

MIB = 2**20
LARGE = {
    "empty nodes": b"\x0a\0" * (2 * MIB),
    "empty functions": b"\x12\x84\x80\x80\x02" + b"\x0a\0" * (2 * MIB + 2),
    "dimensions of an attribute": None,
    "one node's inputs": None,
}
PEAK = """
import resource, sys
from stitch_operator.gateway.digests import canonical
data = sys.stdin.buffer.read()
canonical(b"\\x0a\\0", [])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = canonical(data, [])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, found)
"""


def bomb(name: str) -> bytes:
    """Four MiB that parse to many times that."""
    made = MESSAGES["GraphDef"]()
    node = made.node.add(name="n", op="NoOp")
    if name == "one node's inputs":
        node.input.extend([""] * (2 * MIB))
    elif name == "dimensions of an attribute":
        shape = node.attr["s"].shape
        for _ in range(2 * MIB + 1):
            shape.dim.add()
        made.node.extend([node, node])
    return LARGE[name] or bytes(made.SerializeToString())


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_graph_that_grows_when_it_is_parsed_is_not_parsed(name: str) -> None:
    """Of four MiB became 305 before."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK],
        input=bomb(name),
        capture_output=True,
        env={"PYTHONPATH": ":".join(lean.SOURCES)},
    )
    grown, _, found = run.stdout.decode().partition(" ")
    assert "are served" in found, run.stderr
    assert int(grown) <= 16


def counted(message: Any, kind: str) -> Size:
    """The same counts, of what was parsed."""
    nodes = inputs = fields = 0
    for field, value in message.ListFields():
        maps = field.message_type is not None and field.message_type.GetOptions().map_entry
        repeated = isinstance(value, str | bytes) is False and hasattr(value, "__len__")
        values = list(value.items()) if maps else list(value) if repeated else [value]
        packed = repeated and field.message_type is None and not hasattr(values[0], "encode")
        packed = packed and not isinstance(values[0], bytes)
        fields += 1 if packed else len(values)
        of_nodes = (kind, field.number) in graph_size.NODES
        nodes += len(values) if of_nodes else 0
        inputs += len(values) if (kind, field.number) == graph_size.INPUTS else 0
        for one in values:
            if maps:
                fields += 2
                one = one[1]
            if field.message_type is not None and hasattr(one, "ListFields"):
                inner = counted(one, one.DESCRIPTOR.name)
                nodes, inputs, fields = (
                    nodes + inner.nodes,
                    inputs + inner.inputs,
                    fields + inner.fields,
                )
    return Size(nodes, inputs, fields)


def test_a_graph_is_counted_as_it_is_parsed() -> None:
    made = MESSAGES["GraphDef"].FromString(graph(size=9))
    function = made.library.function.add()
    function.signature.input_arg.add(name="x", type=1)
    body = function.node_def.add(name="m", op="Const", input=["x", "^x"])
    body.attr["value"].tensor.int_val.extend([1, 2, 3])
    body.attr["shapes"].list.shape.add().dim.add(size=-1)
    body.attr["f"].func.attr["T"].type = 3
    assert size_of(made.SerializeToString()) == counted(made, "GraphDef")
    assert size_of(made.SerializeToString()).nodes == 10 + 1 + 1


@given(st.binary(max_size=400))
@settings(max_examples=500)
def test_what_is_no_graph_is_refused_or_left_to_the_parser(data: bytes) -> None:
    try:
        size = size_of(data)
    except ValueError:
        return
    with contextlib.suppress(DecodeError):  # a name that is no UTF-8
        assert len(MESSAGES["GraphDef"].FromString(data).node) <= size.nodes


def test_messages_within_messages_end() -> None:
    value = b""
    for _ in range(300):  # list(func(attr(list(...
        value = _field(1, _field(9, _field(2, _field(2, value))))
    node = _field(1, _field(5, _field(2, value)))
    with pytest.raises(ValueError, match="within each other"):
        size_of(node)


def _field(number: int, data: bytes) -> bytes:
    size, length = b"", len(data)
    while length >= 0x80:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + data


def test_the_limits_are_told() -> None:
    assert too_large(Size(9, 9, 99)) == ""
    for size in (Size(200_001, 0, 0), Size(0, 800_001, 0), Size(0, 0, 4_000_001)):
        assert "are served" in too_large(size)
