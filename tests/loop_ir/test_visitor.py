"""Walks go through all children of a node, because its class names every field that holds some."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from stitchcore.loop_ir.index import Variable, rename, substitute
from stitchcore.loop_ir.nodes import Buffer, Node, Scalar, Store
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.loop_ir.visitor import accesses, expressions, mapped, own_scalars, statements
from tests.loop_ir.sample import column_sum, looked_up, softmax

KINDS = Node.__subclasses__()
HINTS = {(Store, "streams")}
"""Expressions over symbols only, which no walk through loops looks at."""


def _declared(kind: type[Node], annotation: str) -> tuple[str, ...]:
    holding = (annotation, f"tuple[{annotation}, ...]")
    return tuple(f.name for f in fields(kind) if f.type in holding)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_that_holds_children_is_named(kind: type[Node]) -> None:
    assert set(kind.expression_fields) >= set(_declared(kind, "Expression"))
    assert set(kind.index_fields) == set(_declared(kind, "Index"))
    assert set(kind.buffer_fields) == set(_declared(kind, "Buffer"))
    assert set(kind.body_fields) == set(_declared(kind, "Statement"))
    others = {f.name for f in fields(kind) if "InRange" in str(f.type)}  # type: ignore[arg-type]
    assert {(kind, name) for name in others} <= HINTS


@pytest.mark.parametrize("kernel", [softmax(), column_sum(), looked_up()], ids=lambda k: k.name)
def test_a_kernel_is_rebuilt_from_its_children(kernel: object) -> None:
    body = kernel.phases[0].sections[0].body  # type: ignore[attr-defined]
    assert mapped(body) == body
    seen: list[object] = []

    def noted(buffer: Buffer) -> Buffer:
        seen.append(buffer)
        return replace(buffer, name=f"{buffer.name}_other")

    other = mapped(body, buffer=noted)
    assert {a.buffer for a in accesses(body)} <= set(seen)
    assert all(a.buffer.name.endswith("_other") for a in accesses(other))


def test_scalars_of_a_statement_are_those_it_reads_or_updates() -> None:
    section = looked_up().phases[0].sections[0]
    read = {node for node in expressions(section.body) if isinstance(node, Scalar)}
    assert read
    assert read <= {scalar for s in statements(section.body) for scalar in own_scalars(s)}
    assert "place" in print_kernel(looked_up()), "a gather index reads a scalar"


def test_renaming_folds_nothing() -> None:
    node = Variable("i") + Variable("j")
    assert rename(node, {"i": 0}) != substitute(node, {"i": 0}) == Variable("j")
    assert rename(node, {"j": Variable("k")}) == Variable("i") + Variable("k")
