"""What a serialized GraphDef holds, counted on the wire before anything is parsed.

Four MiB of empty nodes parse to three hundred: what bounds memory is the number of fields, whatever
they hold. So each field of each message is counted, in one pass over the bytes that keeps no more
than the messages it is in, and the pass ends with the first count that is too high. Nothing is
checked beyond that: bytes that the pass cannot read are left to the parser, or refused here.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitch_operator.gateway.wire import GRAPH

MOST_NODES = 200_000
"""Of the graph and its library together; each function counts as one more."""
MOST_INPUTS = 4 * MOST_NODES
"""Numbering looks at each several times: at this many it takes some seconds."""
MOST_FIELDS = 20 * MOST_NODES
"""Of all messages at any depth; one that is empty takes up to 150 bytes once it is parsed."""
DEEPEST = 100
"""Messages within messages: what protobuf's own parsers stop at."""
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
NODES = {("GraphDef", 1), ("FunctionDef", 3), ("FunctionDefLibrary", 1)}
INPUTS = ("NodeDef", 3)


@dataclass(frozen=True)
class Size:
    """Nodes and functions, inputs of nodes, fields of all messages."""

    nodes: int
    inputs: int
    fields: int


def too_large(size: Size) -> str:
    """Which limit is passed, in words; "" where none is."""
    if size.nodes > MOST_NODES:
        return f"over {MOST_NODES} nodes, with those of functions; so many are served"
    if size.inputs > MOST_INPUTS:
        return f"over {MOST_INPUTS} inputs of nodes; so many are served"
    return f"over {MOST_FIELDS} fields; so many are served" if size.fields > MOST_FIELDS else ""


def _within() -> dict[tuple[str, int], str]:
    """(message, field number) -> the message that the field holds. A map's field holds entries, of
    a key and, where that is one, a message."""
    found: dict[tuple[str, int], str] = {}
    for message, fields in GRAPH.items():
        for text in fields.split(";"):
            number, kind, name, *_ = text.split()
            plain = kind.rstrip("*%")
            if kind.endswith("%"):
                found[message, int(number)] = f"{message}.{name}"
                if plain in GRAPH:
                    found[f"{message}.{name}", 2] = plain
            elif plain in GRAPH:
                found[message, int(number)] = plain
    return found


WITHIN = _within()


def size_of(data: bytes) -> Size:
    """What a GraphDef holds, or as much of it as passes a limit. Raises ValueError for bytes that
    are no protobuf messages, or too deep."""
    nodes = inputs = fields = position = 0
    message, end = "GraphDef", len(data)
    around: list[tuple[str, int]] = []
    while True:
        while position == end:
            if not around:
                return Size(nodes, inputs, fields)
            message, end = around.pop()
        tag, position = _varint(data, position, end)
        fields += 1
        number, wire = tag >> 3, tag & 7
        if wire == LENGTH:
            length, position = _varint(data, position, end)
            if length > end - position:
                raise ValueError("a field is cut short")
            field = (message, number)
            inside = WITHIN.get(field)
            if inside is None:
                position += length
                inputs += field == INPUTS
            else:
                nodes += field in NODES
                if len(around) == DEEPEST:
                    raise ValueError(f"over {DEEPEST} messages within each other")
                around.append((message, end))
                message, end = inside, position + length
        elif wire == VARINT:
            _, position = _varint(data, position, end)
        else:
            position += {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(wire, len(data) + 1)
        if position > end:
            raise ValueError("not a message: a field that is cut short, or of an unknown kind")
        if nodes > MOST_NODES or inputs > MOST_INPUTS or fields > MOST_FIELDS:
            return Size(nodes, inputs, fields)


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and where what follows it begins."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            break
    raise ValueError("a number is cut short, or too long")
