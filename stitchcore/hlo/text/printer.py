"""A Module as HLO text that XLA reads and that `parse` reads back to the same interned entry.

Symbolic extents print as polynomials (`f32[B,768]`), with the symbols in the header: an extension
that only this package reads. Sharing numbers (`unique`) travel as a frontend attribute.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from stitchcore.hlo.ir import attributes as codecs
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, topological
from stitchcore.hlo.ir.literal import format_literal
from stitchcore.hlo.ir.module import Module


def names(module: Module) -> Mapping[Instruction, str]:
    """The name of every instruction of the entry in the printed text; deterministic."""
    return _numbered(module.entry, "")


def every_name(
    module: Module,
) -> Mapping[Computation, tuple[str, Mapping[Instruction, str]]]:
    """The label of every computation in the printed text ("" for the entry), and the names of its
    instructions there."""
    labels: dict[Computation, tuple[str, Mapping[Instruction, str]]] = {}
    for number, inner in enumerate(_called_first(module.entry)):
        label = f"computation.{number}"
        labels[inner] = (label, _numbered(inner, _prefix(label)))
    labels[module.entry] = ("", names(module))
    return labels


def print_module(module: Module) -> str:
    """`module` as HLO text. Metadata holds the provenance, several names joined by `;`."""
    header = f"HloModule {module.name}"
    if module.symbols:
        header += ", symbols={" + ",".join(module.symbols) + "}"
    if module.aliases:
        several = module.entry.root.opcode == op.TUPLE
        pairs = (
            f"{{{output if several else ''}}}: ({number}, {{}}, may-alias)"
            for output, number in module.aliases
        )
        header += ", input_output_alias={ " + ", ".join(pairs) + " }"
    called: dict[Computation, str] = {}
    lines = [header, ""]
    for inner in _called_first(module.entry):
        called[inner] = f"computation.{len(called)}"
        lines += _computation_text(inner, called, called[inner], {})
    lines += _computation_text(module.entry, called, "", module.provenance)
    return "\n".join(lines)


def called_computations(node: Instruction) -> Iterator[Computation]:
    """The computations among the attributes of `node`, in attribute order."""
    for _, value in node.attributes:
        if isinstance(value, Computation):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Computation))


def _called_first(entry: Computation) -> Iterator[Computation]:
    """Every computation under `entry`, callees before callers, each once."""
    seen: set[Computation] = set()
    stack = [(entry, False)]
    while stack:
        current, done = stack.pop()
        if done:
            if current is not entry:
                yield current
            continue
        if current in seen:
            continue
        seen.add(current)
        stack.append((current, True))
        inner = [c for node in topological((current.root,)) for c in called_computations(node)]
        stack.extend((c, False) for c in reversed(inner))


def _prefix(label: str) -> str:
    """What begins the names of a computation's instructions."""
    return label.replace("computation.", "c") + "." if label else ""


def _numbered(computation: Computation, prefix: str) -> dict[Instruction, str]:
    numbered: dict[Instruction, str] = {}
    for node in (*computation.parameters, *topological((computation.root,))):
        if node not in numbered:
            numbered[node] = f"{prefix}{node.opcode}.{len(numbered)}"
    return numbered


def _computation_text(
    computation: Computation,
    called: Mapping[Computation, str],
    name: str,
    provenance: Mapping[Instruction, tuple[str, ...]],
) -> list[str]:
    numbered = _numbered(computation, _prefix(name))
    signature = ", ".join(f"{numbered[p]}: {p.shape}" for p in computation.parameters)
    title = f"%{name} " if name else "ENTRY %main "
    lines = [f"{title}({signature}) -> {computation.root.shape} {{"]
    for node, label in numbered.items():
        root = "ROOT " if node is computation.root else ""
        opcode = op.CUSTOM_CALL if node.opcode == op.CHECK else node.opcode
        text = f"  {root}%{label} = {node.shape} {opcode}({_inside(node, numbered)})"
        text += _attribute_text(node, called)
        origins = provenance.get(node)
        if origins:
            text += ', metadata={op_name="' + ";".join(origins) + '"}'
        lines.append(text)
    return [*lines, "}", ""]


def _inside(node: Instruction, numbered: Mapping[Instruction, str]) -> str:
    if node.opcode == op.PARAMETER:
        return str(node["number"])
    if node.opcode == op.CONSTANT:
        ratio = node.get("ratio")
        return f"ratio {ratio[0]}/{ratio[1]}" if ratio else format_literal(node["value"])
    return ", ".join(f"{operand.shape} %{numbered[operand]}" for operand in node.operands)


def _attribute_text(node: Instruction, called: Mapping[Computation, str]) -> str:
    if node.opcode in (op.PARAMETER, op.CONSTANT):
        return ""
    if node.opcode == op.CHECK:
        message = json.dumps(node["message"])
        return f', custom_call_target="{codecs.CHECK_TARGET}", backend_config={message}'
    texts = []
    for name, value in node.attributes:
        if isinstance(value, Computation):
            texts.append(f"{name}=%{called[value]}")
        elif name == "branch_computations":
            texts += _branches(node, [f"%{called[branch]}" for branch in node[name]])
        elif name == "unique":
            texts.append(f'frontend_attributes={{unique="{value}"}}')
        elif name == "text":
            texts.append(str(value))
        else:
            texts.append(f"{name}={codecs.CODECS[name][1](value)}")
    return "".join(f", {text}" for text in texts)


def _branches(node: Instruction, branches: list[str]) -> list[str]:
    if node.operands[0].shape.dtype == "pred":
        return [f"true_computation={branches[0]}", f"false_computation={branches[1]}"]
    return ["branch_computations={" + ", ".join(branches) + "}"]
