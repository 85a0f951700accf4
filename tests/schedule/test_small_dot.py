"""Attention's softmax and its small dot are one kernel (Long et al. 2018, arXiv:1811.05213)."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.device.records import DEVICES
from stitchcore.fusion import candidates, planner_exhaustive
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.cost import cost
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.transforms.expand import expand
from stitchcore.schedule.pipeline import feasible, schedule
from tests.schedule.agree import assert_close, check
from tests.schedule.modules import apply, broadcast, draw_inputs, parameter, reduce, whole


def attention_of_one_query(batch: int, keys: int, size: int) -> Module:
    """Softmax and batched dot of the paper's NMT (Long et al. 2018), one query a row."""
    scores, values = parameter(0, (batch, keys)), parameter(1, (batch, keys, size))
    wide = scores.shape.dims
    top = broadcast(reduce(scores, (1,), op.MAXIMUM), wide, (0,))
    raised = apply(op.EXPONENTIAL, apply(op.SUBTRACT, scores, top))
    weights = apply(op.DIVIDE, raised, broadcast(reduce(raised, (1,)), wide, (0,)))
    mixed = instruction(
        op.DOT,
        Shape("f32", (batch, size)),
        (weights, values),
        lhs_batch_dims=(0,),
        rhs_batch_dims=(0,),
        lhs_contracting_dims=(1,),
        rhs_contracting_dims=(1,),
    )
    return Module("nmt", computation((scores, values), mixed))


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])
def test_softmax_and_small_dot_are_one_kernel(target: str) -> None:
    module = expand(attention_of_one_query(512, 17, 128)).module
    plan = planner_exhaustive.plan(module, DEVICES[target], cost, feasible)
    assert not plan.opaque
    (pattern,) = plan.patterns
    assert len(schedule(pattern, module, DEVICES[target], "nmt", verify=True).phases) <= 3


def test_softmax_and_small_dot_are_right() -> None:
    module = expand(attention_of_one_query(6, 17, 40)).module
    pattern = whole(module)
    given = draw_inputs(pattern, 3)
    kernel = check(pattern, module, given, compiled=True)
    arrays = dict(zip(pattern.inputs, given, strict=True))
    scores, values = (arrays[p].astype(np.float64) for p in module.entry.parameters)
    raised = np.exp(scores - scores.max(1, keepdims=True))
    weights = raised / raised.sum(1, keepdims=True)
    expected = np.einsum("bk,bkd->bd", weights, values).astype(np.float32)
    assert_close(evaluate(module, [arrays[p] for p in module.entry.parameters]), [expected], kernel)


def test_a_library_call_as_the_whole_result_reads_what_a_kernel_made() -> None:
    """Not small, and the root itself: what it reads must be in memory."""
    module = attention_of_one_query(6, 17, 40)
    graph = candidates.build(module, {})
    weights = module.entry.root.operands[0]
    assert graph.roles[graph.position[weights]] is Role.PLACED
    assert graph.demanded[graph.position[weights]]
