"""Small twins of whole steps: the same instructions, structure kept, and runnable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from tests.fuzz.extents import Extents, ladder
from tests.fuzz.shrink import shrink
from tests.hlo import workloads, xla
from tests.hlo.test_evaluate import ordinary


def elements(module: Module) -> int:
    nodes = topological((module.entry.root,))
    return sum(n.shape.size for n in nodes if n.shape.elements is None)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("layernorm_gelu_grad", 50),
        ("mlp_train", 100),
        ("lstm_lm_train", 1000),
        ("dien_infer", 10),
        ("bert_infer", 100),
        ("gpt2_train", 100),
    ],
)
def test_twin_is_small_and_runs(name: str, factor: int) -> None:
    module = workloads.module(name)
    twin = shrink(module)
    assert elements(twin.module) * factor < elements(module)
    assert parse(print_module(twin.module)).entry is twin.module.entry
    if elements(twin.module) < 10**7:
        outputs = evaluate(twin.module, ordinary(twin.module))
        assert [o.shape for o in outputs] == [n.shape.dims for n in twin.module.outputs]


@pytest.mark.parametrize("name", ["mlp_train", "bert_infer", "dien_infer", "resnet50_train"])
def test_twin_keeps_every_stitchable_instruction(name: str) -> None:
    """Same opcode, same rank, same operands' counts; distinct sizes of one shape stay distinct."""
    module = workloads.module(name)
    twin = shrink(module)
    live = set(topological((twin.module.entry.root,)))
    for node in topological((module.entry.root,)):
        if op.record(node.opcode).kind not in op.STITCHABLE_KINDS or node in twin.cuts:
            continue
        small = twin.made[node]
        assert small in live or small.opcode == op.CONSTANT
        assert (small.opcode, small.shape.dtype) == (node.opcode, node.shape.dtype)
        assert [d == 1 for d in small.shape.dims] == [d == 1 for d in node.shape.dims]
        _same_structure(node, small)


def _same_structure(node: Instruction, small: Instruction) -> None:
    for operand, other in zip(node.operands, small.operands, strict=True):
        pairs = zip(operand.shape.dims, other.shape.dims, strict=True)
        for large, little in pairs:
            assert isinstance(large, int) and isinstance(little, int)
            assert little <= large
            assert large % 4 or large <= 8 or little % 4 == 0


def test_xla_accepts_a_twin() -> None:
    xla.client()
    from jaxlib import _hlo

    for name in ("mlp_train", "lstm_lm_train", "asr_train"):
        _hlo.hlo_module_from_text(print_module(shrink(workloads.module(name)).module))


def test_symbolic_modules_must_be_specialised_first() -> None:
    text = "HloModule m, symbols={B}\nENTRY e {\n  ROOT x = f32[B] parameter(0)\n}\n"
    with pytest.raises(ValueError, match="symbolic"):
        shrink(parse(text))


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=12), st.sampled_from([0, 8, 32]))
def test_ladder_keeps_order_and_divisibility(sizes: list[int], part: int) -> None:
    chosen = ladder(sizes, 8, part)
    assert not part or all(chosen[size] * part >= size for size in sizes)
    ordered = sorted(chosen)
    for size in ordered:
        assert chosen[size] <= size
        assert size <= 8 or size % 4 or chosen[size] % 4 == 0
        assert size <= 8 or size % 2 == 0 or chosen[size] % 2 == 1
    values = [chosen[size] for size in ordered]
    assert values == sorted(set(values)), "different sizes have different stand-ins"


def test_reshapes_split_extents_into_common_factors() -> None:
    extents = Extents()
    rows, batch, length, heads, width, hidden = (
        extents.new(n) for n in (4096, 32, 128, 12, 64, 768)
    )
    extents.unify([rows, hidden], [batch, length, hidden])
    extents.unify([batch, length, hidden], [batch, length, heads, width])
    assert extents.factors([rows]) == extents.factors([batch, length])
    assert extents.factors([hidden]) == extents.factors([heads, width])
    extents.pin([rows])
    assert extents.pinned(length) and not extents.pinned(heads)
    sizes = [extents.size(f) for f in extents.factors([rows, hidden])]
    assert np.prod(sizes) == 4096 * 768
