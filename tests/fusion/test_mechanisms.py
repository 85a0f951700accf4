"""Each mechanism can be left out: plans and kernels are right without it, and do what it claims
only with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.compiler import pipeline
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES
from stitchcore.fusion import mechanisms, planner_rules
from stitchcore.fusion.candidates import Role, build, reduces_rows
from stitchcore.fusion.cost import cost
from stitchcore.fusion.mechanisms import ALL, SUMMARIES, Mechanism, Mechanisms
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel, Load
from stitchcore.loop_ir.visitor import accesses
from tests.fusion.test_exhaustive import anything, check, load
from tests.fuzz.modules import random_module
from tests.schedule import agree
from tests.schedule.modules import draw_inputs, modules, whole
from tests.tiers import nightly_but, slow_but

CPU, GPU = "cpu-x86-64-v3", "sm_80"


def planned(module: Module, mechanisms: Mechanisms, target: str = CPU) -> ModuleState:
    options = BuildOptions(mechanisms=mechanisms, verify_passes=True)
    return pipeline.run(PLANNED, ModuleState(module, DEVICES[target], options))


def patterns(state: ModuleState) -> tuple[Pattern, ...]:
    assert state.plan is not None
    return state.plan.patterns


def without(*left_out: Mechanism) -> Mechanisms:
    return ALL - {*left_out}


# ---- words ---------------------------------------------------------------------------------------
def test_words_name_what_is_left_out() -> None:
    assert mechanisms.without([]) == ALL and mechanisms.words(ALL) == ()
    some = mechanisms.without(["remote", "atm", "remote"])
    assert ALL - some == {Mechanism.REMOTE, Mechanism.ADAPTIVE_MAPPING}
    assert mechanisms.words(some) == ("atm", "remote")
    assert SUMMARIES.keys() == {*Mechanism}
    with pytest.raises(ValueError, match=r"stitching: no mechanism; there is aliasing, atm, "):
        mechanisms.without(["stitching", "global"])


def test_kernels_of_other_mechanisms_have_other_names() -> None:
    module = load("softmax_grad")
    keys = [planned(module, ALL - {one}).keys for one in (None, Mechanism.ALIASING)]
    assert not {*keys[0]} & {*keys[1]}


# ---- right without any ---------------------------------------------------------------------------
SUBSETS = st.sets(st.sampled_from(Mechanism)).map(frozenset)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), SUBSETS, st.sampled_from(sorted(PLANNERS)))
def test_plans_are_complete_and_acyclic_under_any(
    seed: int, chosen: Mechanisms, planner: str
) -> None:
    module = random_module(np.random.default_rng(seed))
    check(PLANNERS[planner](module, DEVICES[CPU], cost, anything, chosen))


@pytest.mark.slow
@settings(max_examples=150)
@given(modules(), SUBSETS, st.sampled_from((CPU, GPU)))
def test_kernels_agree_with_numpy_under_any(
    module: Module, chosen: Mechanisms, target: str
) -> None:
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0)
    agree.check(pattern, module, inputs, device=DEVICES[target], mechanisms=chosen)


# ---- what each claims ----------------------------------------------------------------------------
def test_regional_goes_on_after_a_rows_reduction() -> None:
    """Softmax and layer normalisation are one kernel each, and several without."""
    for name in ("softmax_grad", "layernorm_gelu_grad"):
        module = load(name)
        (kernel,) = patterns(planned(module, ALL))
        assert any(map(reduces_rows, kernel.instructions))
        apart = patterns(planned(module, without(Mechanism.REGIONAL)))
        assert len(apart) >= 3
        for pattern in apart:
            read = {operand for value in pattern.instructions for operand in value.operands}
            assert not any(reduces_rows(v) and v in read for v in pattern.instructions)


def test_global_goes_on_across_a_barrier() -> None:
    """Without it no reduction over tasks is read in the kernel that makes it."""
    module = load("mlp_train")

    def read_in_place(state: ModuleState) -> int:
        graph = build(state.module, {})
        count = 0
        for pattern in patterns(state):
            read = {operand for value in pattern.instructions for operand in value.operands}
            count += sum(
                value.opcode == "reduce" and not reduces_rows(value) and value in read
                for value in pattern.instructions
                if graph.roles[graph.position[value]] is Role.PLACED
            )
        return count

    assert read_in_place(planned(module, ALL)) > 0
    assert read_in_place(planned(module, without(Mechanism.GLOBAL))) == 0


def unconnected(pattern: Pattern) -> int:
    """Parts of a kernel that no value made in it connects."""
    group = {value: value for value in pattern.instructions}

    def root(value: Instruction) -> Instruction:
        while group[value] is not value:
            value = group[value]
        return value

    for value in pattern.instructions:
        for operand in value.operands:
            if operand in group and operand.shape.size != 1:
                group[root(operand)] = root(value)
    return len({root(value) for value in pattern.outputs})


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize(
    "name",
    slow_but("crnn_infer", of=["mlp_train", "lstm_lm_train", "crnn_infer", "transformer_dec_step"]),
)
def test_remote_joins_what_no_data_connects(name: str, target: str) -> None:
    module = load(name)
    joined, apart = (patterns(planned(module, m, target)) for m in (ALL, without(Mechanism.REMOTE)))
    assert len(joined) < len(apart)
    more, fewer = (sum(unconnected(p) - 1 for p in plan) for plan in (joined, apart))
    assert more > fewer


@pytest.mark.slow
def test_recompute_reads_less() -> None:
    module = load("mlp_train")
    moved = [
        sum(cost(pattern, DEVICES[GPU]).bytes for pattern in patterns(planned(module, m, GPU)))
        for m in (ALL, without(Mechanism.RECOMPUTE))
    ]
    assert moved[0] < moved[1]


def seconds(module: Module, mechanisms: Mechanisms) -> float:
    plan = PLANNERS["exhaustive"](module, DEVICES["sm_70"], cost, anything, mechanisms)
    return plan.planned.seconds


@pytest.mark.parametrize("left_out", [Mechanism.GLOBAL, Mechanism.RECOMPUTE])
@pytest.mark.parametrize(
    "name",
    slow_but("transformer_dec_step", of=["dien_train", "transformer_dec_step", "lstm_lm_train"]),
)
def test_leaving_out_what_is_chosen_by_estimate_is_never_quicker(
    name: str, left_out: Mechanism
) -> None:
    module = load(name)
    limit = 1 + planner_rules.BARRIERS if left_out is Mechanism.GLOBAL else 1 + 1e-9
    assert seconds(module, ALL) <= seconds(module, without(left_out)) * limit


@pytest.mark.slow
def test_barriers_are_left_out_where_kernels_are_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("dien_train")
    chosen = seconds(module, ALL)
    monkeypatch.setattr(planner_rules, "BARRIERS", 1.0)  # of a plan's time: never looked at
    assert chosen < seconds(module, ALL)


def sections(kernel: Kernel) -> int:
    return sum(len(phase.sections) for phase in kernel.phases)


def loads_of(kernels: tuple[Kernel, ...]) -> int:
    return sum(
        isinstance(access, Load)
        for kernel in kernels
        for phase in kernel.phases
        for section in phase.sections
        for access in accesses(section.body)
    )


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize(
    "name",
    slow_but(
        "layernorm_gelu_grad", "crnn_infer",
        of=["layernorm_gelu_grad", "crnn_infer", "transformer_dec_step", "mlp_train"],
    ),
)  # fmt: skip
def test_dominant_merging_shares_loops(name: str, target: str) -> None:
    """The kernels are the same, of fewer sections, which load less."""
    module = load(name)
    merged, apart = (
        planned(module, m, target).kernels for m in (ALL, without(Mechanism.DOMINANT_MERGING))
    )
    assert len(merged) == len(apart)
    assert sum(map(sections, merged)) < sum(map(sections, apart))
    assert loads_of(merged) < loads_of(apart)


def test_aliasing_takes_over_memory() -> None:
    module = load("mlp_train")
    assert any(kernel.aliases for kernel in planned(module, ALL).kernels)
    assert not any(k.aliases for k in planned(module, without(Mechanism.ALIASING)).kernels)


SMALL = ["crnn_infer", "transformer_dec_step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "left_out",
    [Mechanism.DOMINANT_MERGING, Mechanism.REMOTE, Mechanism.ADAPTIVE_MAPPING, Mechanism.ALIASING],
)
@pytest.mark.parametrize(
    "name",
    nightly_but(
        "crnn_infer",
        "transformer_dec_step",
        of=["crnn_infer", "transformer_dec_step", "dien_infer"],
    ),
)
def test_each_changes_kernels(name: str, left_out: Mechanism) -> None:
    module = load(name)

    def nameless(mechanisms: Mechanisms) -> list[Kernel]:
        return [replace(k, name="") for k in planned(module, mechanisms, GPU).kernels]

    assert nameless(ALL) != nameless(without(left_out))


@pytest.mark.slow
def test_more_left_out_is_never_fewer_kernels() -> None:
    """Local fusion alone is what XLA does; each scheme of AStitch's takes kernels off."""
    module = load("transformer_dec_step")
    steps = [ALL]
    for mechanism in (Mechanism.REMOTE, Mechanism.GLOBAL, Mechanism.REGIONAL):
        steps.append(steps[-1] - {mechanism})
    counts = [len(patterns(planned(module, m))) for m in steps]
    assert all(more <= fewer for more, fewer in pairwise(counts)) and counts[0] < counts[-1]
