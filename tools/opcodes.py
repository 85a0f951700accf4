"""Writes docs/opcodes.md: what becomes of each HLO opcode, in the table's own words.

    python -m tools.opcodes             rewrite the page
    python -m tools.opcodes --check     exit 1 when the page is not what the opcode table says

What an opcode becomes follows from its record and the rules of expansion. The shares of bytes are
those of bench/results/reach.json, which `python -m bench.reach` measures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stitchcore.errors import Reason
from stitchcore.fusion import candidates
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.opcodes import Opcode
from stitchcore.hlo.transforms import expand

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "opcodes.md"
RESULTS = ROOT / "bench" / "results" / "reach.json"

INTRODUCTION = """# Opcodes: in a kernel, or refused with a reason

Written by `python -m tools.opcodes`; do not edit. *In a kernel* follows from the opcode's record
(`stitchcore/hlo/ir/opcodes.py`) and the rules of expansion; an instruction is also refused for its
types (`unsupported_type`: complex numbers, bounded shapes) or a function that is not one opcode.

*Bytes* is the opcode's share of all memory-intensive bytes of the workload modules, *reached* how
much of that lies in kernels of two or more instructions, *left* why the rest does not: measured by
`python -m bench.reach` for {device}. Library calls, sorts and control flow are apart. Over all
workloads {share} of {gigabytes} GB are reached.
"""


def fate(record: Opcode) -> str:
    """What becomes of an opcode, in a few words."""
    rules = [rule.name for rule in expand.EXPANSIONS if record.name in rule.opcodes]
    if record.kind == "scan":
        return f"cumulative, or where `{rules[0]}` applies; else {Reason.UNSUPPORTED_OPCODE.value}"
    if record.kind in opcodes.STITCHABLE_KINDS:
        return "yes"
    if record.kind == "structure":
        return "needs no work"
    reason = candidates.refusal_of_kind(record.kind).value
    if record.kind == "composite":
        return "as other opcodes"
    return f"where `{'`, `'.join(rules)}` applies, else {reason}" if rules else f"no: {reason}"


def page(figures: Mapping[str, Any]) -> str:
    """The page's text; `figures` are those of bench/results/reach.json."""
    introduction = INTRODUCTION.format(
        device=f"`{figures['device']}`",
        share=f"{figures['share']:.2%}",
        gigabytes=f"{figures['bytes'] / 1e9:.1f}",
    )
    lines = [
        introduction,
        "| opcode | kind | in a kernel | bytes | reached | left |",
        "|---" * 6 + "|",
    ]
    for name, record in sorted(opcodes.OPCODES.items()):
        measured = figures["opcodes"].get(name, {"bytes": 0, "reached": 0, "left": {}})
        cells = (name, record.kind, fate(record), *_shares(measured, figures["bytes"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shares(measured: Mapping[str, Any], everything: int) -> tuple[str, str, str]:
    size = measured["bytes"]
    if not size:
        return "", "", ""
    left = (f"{reason} {part / everything:.3%}" for reason, part in measured["left"].items())
    return f"{size / everything:.3%}", f"{measured['reached'] / size:.1%}", ", ".join(left)


def main(arguments: Sequence[str]) -> int:
    text = page(json.loads(RESULTS.read_text(encoding="utf-8")))
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
