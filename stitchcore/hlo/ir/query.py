"""Questions every part asks of instructions."""

from __future__ import annotations

from collections.abc import Mapping

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES


def reducer_of(node: Instruction) -> str | None:
    """The opcode of `node`'s to_apply when that is a plain monoid of two scalars, else None."""
    body = node.get("to_apply")
    if not isinstance(body, Computation) or len(body.parameters) != 2:
        return None
    return monoid(body)


def monoid(body: Computation) -> str | None:
    """The one opcode of a two-parameter computation that only combines its parameters.

    A convert around the combination of bf16 values (TensorFlow widens them) is not a monoid.
    """
    root = body.root
    if root.opcode in op.REDUCERS and set(root.operands) == set(body.parameters):
        return root.opcode
    return None


def factors_of(node: Instruction) -> tuple[Instruction, Instruction] | None:
    """The two broadcasts whose products `node` adds up, where that is a matrix product written out
    (hlo/transforms/expand_dot.py): each lacks a kept dimension that the other has, both have all
    that are summed over, and the innermost is kept."""
    if node.opcode != op.REDUCE or len(node.operands) != 2 or reducer_of(node) != op.ADD:
        return None
    product, summed = node.operands[0], frozenset(node["dimensions"])
    if product.opcode != op.MULTIPLY or product.shape.rank - 1 in summed:
        return None
    left, right = product.operands
    if left.opcode != op.BROADCAST or right.opcode != op.BROADCAST:
        return None
    has = [frozenset(factor["dimensions"]) for factor in (left, right)]
    dims = frozenset(range(product.shape.rank))
    lacks = [dims - some for some in has]
    both = all(summed <= some for some in has) and not lacks[0] & lacks[1]
    return (left, right) if both and all(lacks) else None


def scatter_combiner(node: Instruction) -> str | None:
    """The opcode that a scatter combines what is there with an update by; None where the update
    takes its place. Ask `scatter_refusal` first."""
    root = node["to_apply"].root
    return None if root is node["to_apply"].parameters[1] else str(root.opcode)


def scatter_refusal(node: Instruction) -> str | None:
    """Why a scatter is none of whole rows, each combined by one opcode; None where it is."""
    if len(node.operands) != 3 or node.get("input_batching_dims"):
        return "several operands, or dimensions of batches"
    operand, _, updates = node.operands
    scattered, inserted = node["scatter_dims_to_operand_dims"], node["inserted_window_dims"]
    window = [extent for d, extent in enumerate(operand.shape.dims) if d not in inserted]
    sizes = [updates.shape.dims[d] for d in node["update_window_dims"]]
    if not scattered or sorted(scattered) != sorted(inserted) or window != sizes:
        return "windows that are no whole rows"
    body: Computation = node["to_apply"]
    root = body.root
    if root is body.parameters[1]:
        return None
    record = op.record(root.opcode)
    in_order = root.operands == body.parameters
    swapped = record.commutative and set(root.operands) == set(body.parameters)
    if record.kind != "elementwise" or record.attributes or not (in_order or swapped):
        return "a function that is not one opcode"
    if DTYPES[node.shape.dtype].narrow:
        return f"sums of {node.shape.dtype}"
    return None


def users(module: Module) -> Mapping[Instruction, tuple[Instruction, ...]]:
    """Every instruction of the entry with its users in topological order, each user once."""
    users_of: dict[Instruction, dict[Instruction, None]] = {}
    for node in topological((module.entry.root,)):
        users_of.setdefault(node, {})
        for operand in node.operands:
            users_of[operand][node] = None
    return {node: tuple(many) for node, many in users_of.items()}
