"""The fuzzer: reproducible, well typed, and it reaches the whole stitchable table."""

from __future__ import annotations

import numpy as np

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.cumulative import scan_of, scan_refusal
from stitchcore.hlo.ir.instruction import topological
from tests.fuzz.draw import FuzzOptions
from tests.fuzz.modules import random_arguments, random_module


def test_same_seed_same_module() -> None:
    for seed in range(20):
        first = random_module(np.random.default_rng(seed))
        assert random_module(np.random.default_rng(seed)).entry is first.entry


def test_evaluated_shapes_are_the_declared_ones() -> None:
    options = FuzzOptions(dtypes=("f32", "bf16", "s32", "pred", "u8"), instructions=20)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        module = random_module(rng, options)
        outputs = evaluate(module, random_arguments(module, rng))
        assert [o.shape for o in outputs] == [n.shape.dims for n in module.outputs]


def test_every_stitchable_opcode_is_drawn() -> None:
    drawn: set[str] = set()
    for seed in range(400):
        options = FuzzOptions(dtypes=("f32", "s32", "u32", "f64", "pred"), instructions=20)
        module = random_module(np.random.default_rng(seed), options)
        drawn |= {n.opcode for n in topological((module.entry.root,))}
    wanted = {n for n, r in op.OPCODES.items() if r.kind in op.STITCHABLE_KINDS}
    by_design = {op.COPY, op.BITCAST, op.BITCAST_CONVERT, op.REDUCE_PRECISION, op.POWER, "tan",
                 "exponential-minus-one", op.CHECK}  # fmt: skip
    assert wanted - drawn <= by_design


def test_reduce_windows_that_are_drawn_are_scans_in_every_direction() -> None:
    drawn = set()
    for seed in range(150):
        module = random_module(np.random.default_rng(seed))
        values = topological((module.entry.root,))
        for node in (v for v in values if v.opcode == op.REDUCE_WINDOW):
            scan = scan_of(node)
            if scan is not None:
                assert scan_refusal(node) is None
                drawn.add((scan.reverse, scan.exclusive))
            else:  # an axis of one element
                assert 1 in node.shape.dims or 2 in node.shape.dims
    assert len(drawn) == 4
