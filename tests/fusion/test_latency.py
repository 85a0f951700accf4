"""The latency-evaluator of GPU targets: waves, what binds, what is computed again, what is held."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES
from stitchcore.fusion import cells, latency, occupancy, planner_explore, planner_rules
from stitchcore.fusion.cost import cost, crosses_tasks, priced, single, terms
from stitchcore.fusion.instructions import element, repetitions
from stitchcore.fusion.latency import Work
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.schedule.pipeline import schedule
from tests.fusion.test_exhaustive import anything, load
from tests.schedule.modules import apply, broadcast, module_of, parameter, reduce, whole

GPU, OLD = DEVICES["sm_90"], DEVICES["sm_70"]
LARGE = (1 << 24,)
CPU_SECONDS = {
    "softmax_grad": (9.703798452380954e-05, 0.00022296792380952383),
    "mlp_train": (0.0008452947032142858, 0.005094633500000001),
    "bert_infer": (0.4891087564828572, 5.407847218895191),
}
"""Planned and unfused for cpu-x86-64-v3, by two planners alike, before GPUs had the evaluator; what
mlp_train plans is of when recomputation was first weighed by time (0.949 ms before)."""


@pytest.mark.parametrize("name", CPU_SECONDS)
def test_estimates_of_a_cpu_are_what_they_were_to_the_last_bit(name: str) -> None:
    """`explore` by the delta-evaluator too."""
    for planner in ("exhaustive", "explore"):
        plan = PLANNERS[planner](load(name), DEVICES["cpu-x86-64-v3"], cost, anything)
        assert (plan.planned.seconds, plan.unfused.seconds) == CPU_SECONDS[name]


# ---- waves of warps ------------------------------------------------------------------------------
def additions(count: int, dims: tuple[int, ...] = LARGE) -> Pattern:
    x, y = parameter(0, dims), parameter(1, dims)
    value = x
    for _ in range(count):
        value = apply(op.ADD, value, y)
    return whole(module_of([value], [x, y]))


def work_of(pattern: Pattern) -> Work:
    return sum((priced(one, OLD) for one in pattern.instructions), Work())


def test_the_papers_product_where_few_warps_are_resident() -> None:
    """2^24 lanes are 524,288 warps; of 2,048 threads each of 80 multiprocessors holds 128: 320
    warps resident. 1,638.4 waves of ten additions, four cycles each, 1.53 GHz."""
    seconds = latency.seconds(work_of(additions(10)), OLD, share=128 / 2048)
    assert seconds == pytest.approx(524288 / 320 * 10 * 4 / 1.53e9)


def test_what_is_issued_binds_where_many_are() -> None:
    """All 5,120 warps resident: waves would be over in 4,096 cycles, but 64 lanes a cycle of each
    multiprocessor take 32,768 (V100: half of 15.7 TFLOP/s, as no multiply-add is fused)."""
    seconds = latency.seconds(work_of(additions(10)), OLD)
    assert seconds == pytest.approx(10 * 2**24 / 64 / 80 / 1.53e9)
    assert seconds == pytest.approx(10 * 2**24 / (15.7e12 / 2), rel=0.01)


def test_a_wave_takes_its_longest_way() -> None:
    """1,000 additions of a few elements wait for each other, beside each other they do not."""
    chain = additions(1000, (64,))
    x = parameter(0, (64,))
    apart = whole(module_of([apply(op.ADD, x, parameter(n + 1, (64,))) for n in range(500)],
                            [x, *(parameter(n + 1, (64,)) for n in range(500))]))  # fmt: skip
    assert OLD.timing is not None
    assert latency.critical_path(chain.instructions, OLD.timing, crosses_tasks) == 4000
    assert latency.critical_path(apart.instructions, OLD.timing, crosses_tasks) == 4
    more = cost(chain, OLD).seconds - OLD.launch_seconds
    assert more > (4000 + 460) / 1.53e9 > 2 * (cost(additions(1, (64,)), OLD).seconds - 4e-6)


@given(st.integers(16, 255), st.integers(16, 255), st.integers(1, 2000))
def test_more_registers_are_never_faster(one: int, other: int, count: int) -> None:
    few, many = sorted((one, other))
    work = Work(0, element(additions(1).instructions[0]).times(count * 1e6))
    seconds = []
    for registers in (few, many):
        share = occupancy.occupancy(registers, 0, GPU)
        assert 0 < share <= 1
        seconds.append((latency.seconds(work, GPU, share), occupancy.slowed(share, GPU)))
    assert seconds[0] <= seconds[1]


def test_bandwidth_times_latency_is_what_threads_must_have_under_way() -> None:
    """A100: 1,555 GB/s over 108 at 1.41 GHz are 10.2 bytes a cycle, times 466 cycles 4.7 KB, which
    297 threads of 2,048 have at 16 bytes each."""
    assert occupancy.enough_threads(DEVICES["sm_80"]) * 2048 == pytest.approx(296.5, rel=0.01)
    assert occupancy.slowed(0.5, GPU) == 1.0
    enough = occupancy.enough_threads(GPU)
    assert occupancy.slowed(enough / 2, GPU) == pytest.approx(2.0)
    assert occupancy.slowed(0.01, DEVICES["cpu-x86-64-v3"]) == 1.0


# ---- classes of instructions ---------------------------------------------------------------------
def test_exponentials_are_not_free() -> None:
    """Same bytes. One hides behind memory, thirty do not; logarithms have no special unit."""

    def seconds(count: int, opcode: str) -> float:
        x = parameter(0, LARGE)
        value = x
        for _ in range(count):
            value = apply(opcode, value)
        return cost(whole(module_of([value], [x])), GPU).seconds

    assert seconds(1, op.EXPONENTIAL) < 1.1 * seconds(1, op.NEGATE)
    assert seconds(30, op.EXPONENTIAL) > 3 * seconds(1, op.EXPONENTIAL)
    assert seconds(30, op.LOG) > 1.5 * seconds(30, op.EXPONENTIAL) > 3 * seconds(30, op.NEGATE)


def test_types_have_units_of_their_own() -> None:
    def counts(opcode: str, dtype: str) -> dict[str, float]:
        x = parameter(0, (8,), dtype)
        classes = element(apply(opcode, *[x] * (op.record(opcode).arity or 1)))
        names = ("float32", "integer", "special", "float64")
        return {name: getattr(classes, name) for name in names if getattr(classes, name)}

    assert counts(op.ADD, "f32") == {"float32": 1}
    assert counts(op.ADD, "f64") == {"float64": 1}
    assert counts(op.ADD, "s32") == {"integer": 1}
    assert counts(op.ADD, "bf16") == {"float32": 1, "integer": 6}
    assert counts(op.EXPONENTIAL, "f32") == {"float32": 6, "integer": 3, "special": 1}
    assert counts(op.EXPONENTIAL, "f64") == {"float64": 12, "integer": 12, "special": 1}
    assert counts(op.DIVIDE, "s32") == {"integer": 30, "special": 3}


def test_a_float64_addition_takes_32_times_as_long_where_there_are_two_lanes() -> None:
    L4 = DEVICES["sm_89"]

    def seconds(dtype: str) -> float:
        x = parameter(0, LARGE, dtype)
        return latency.seconds(priced(apply(op.ADD, x, x), L4), L4)

    assert seconds("f64") == pytest.approx(64 * seconds("f32"))


# ---- computed again ------------------------------------------------------------------------------
def spread(opcode: str, columns: int) -> tuple[Instruction, Pattern]:
    """`opcode` of a column, filled into rows of so many `columns`, and added to a matrix: AStitch's
    power<2> -> broadcast<2,128> -> add."""
    x, matrix = parameter(0, (1 << 18,)), parameter(1, (1 << 18, columns))
    value = apply(opcode, x, x) if op.record(opcode).arity == 2 else apply(opcode, x)
    filled = broadcast(value, matrix.shape.dims, (0,))
    return value, whole(module_of([apply(op.ADD, filled, matrix)], [x, matrix]))


def test_what_a_broadcast_reads_is_computed_by_its_factor() -> None:
    value, pattern = spread(op.MULTIPLY, 128)
    assert repetitions(pattern.instructions, pattern.outputs)[value] == 128
    power, pattern = spread(op.POWER, 128)
    assert repetitions(pattern.instructions, pattern.outputs)[power] == 1  # kept
    written = Pattern(pattern.instructions, pattern.inputs, (power, *pattern.outputs))
    assert repetitions(written.instructions, written.outputs)[power] == 1


def test_factors_multiply_and_stop_at_reductions() -> None:
    x = parameter(0, (4,))
    first = apply(op.ADD, x, x)
    wide = broadcast(first, (4, 8), (0,))
    second = apply(op.MULTIPLY, wide, wide)
    wider = broadcast(second, (4, 8, 16), (0, 1))
    third = apply(op.ADD, wider, wider)
    total = reduce(third, (2,))
    back = broadcast(total, (4, 8, 32), (0, 1))
    pattern = whole(module_of([apply(op.ADD, back, back)], [x]))
    times = repetitions(pattern.instructions, pattern.outputs)
    assert [times[one] for one in (first, second, third, total)] == [8 * 16, 16, 1, 1]


def test_recomputation_is_a_term_that_grows_with_the_factor() -> None:
    """On a device whose memory hides nothing. Logarithms are too dear to be done again."""
    bare = replace(GPU, overlap=0.0)

    def again(columns: int) -> float:
        return terms(spread(op.SQRT, columns)[1], bare).recomputed

    assert 0 < again(64) < again(256)
    assert again(256) == pytest.approx(255 / 63 * again(64), rel=0.01)
    assert terms(spread(op.LOG, 256)[1], bare).recomputed == 0
    pattern = spread(op.SQRT, 256)[1]
    assert cost(pattern, bare).seconds == pytest.approx(sum(asdict(terms(pattern, bare)).values()))
    assert terms(spread(op.SQRT, 256)[1], DEVICES["cpu-x86-64-v3"]).recomputed == 0


# ---- what is held --------------------------------------------------------------------------------
def softmaxes(rows: int, columns: int, count: int) -> Pattern:
    """One after the other, so that only one's exponentials live."""
    x = parameter(0, (rows, columns))
    value = x
    for _ in range(count):
        raised = apply(op.EXPONENTIAL, value)
        total = broadcast(reduce(raised, (1,)), (rows, columns), (0,))
        value = apply(op.DIVIDE, raised, total)
    return whole(module_of([value], [x]))


def beside(columns: int, count: int) -> Pattern:
    """So many rows that all wait for one sum."""
    x = parameter(0, (64, columns))
    total = value = apply(op.EXPONENTIAL, x)
    rows = [value]
    for _ in range(count - 1):
        rows.append(apply(op.EXPONENTIAL, rows[-1]))
        total = apply(op.ADD, total, rows[-1])
    whole_row = broadcast(reduce(total, (1,)), (64, columns), (0,))
    return whole(module_of([apply(op.MULTIPLY, one, whole_row) for one in rows], [x]))


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        (softmaxes(64, 12288, 1), 1),
        (softmaxes(64, 12288, 3), 1),  # no two live at once
        (softmaxes(64, 14528, 1), 1),
        (beside(12288, 2), 1),  # two live at once, and a quarter has room for one
        (beside(12288, 5), 1),
        (softmaxes(64, 4096, 1), 0),  # in registers
        (softmaxes(64, 16384, 1), 0),  # over a quarter
    ],
)
def test_rows_that_wait_for_their_sum_are_in_shared_memory_as_the_scheduler_has_them(
    pattern: Pattern, rows: int
) -> None:
    columns = pattern.inputs[0].shape.static[1]
    estimated = cost(pattern, GPU).shared_bytes
    assert estimated == rows * 4 * columns
    assert estimated == cuda.shared_bytes(
        schedule(pattern, module_of([*pattern.outputs], [*pattern.inputs]), GPU, "rows")
    )
    assert cost(pattern, DEVICES["cpu-x86-64-v3"]).shared_bytes == 0


def test_shared_memory_takes_threads() -> None:
    """233,472 bytes hold three blocks of 58,112 and 1,024 of their own."""
    three = cost(softmaxes(64, 14528, 1), GPU)
    assert cost(softmaxes(64, 4096, 1), GPU).occupancy > three.occupancy == 3 * 256 / 2048


def alive(count: int) -> Pattern:
    x = parameter(0, LARGE)
    sums = [apply(op.ADD, x, parameter(n + 1, LARGE)) for n in range(count)]
    total = sums[-1]
    for one in reversed(sums[:-1]):
        total = apply(op.ADD, total, one)
    return whole(module_of([*sums, total], [x, *(parameter(n + 1, LARGE) for n in range(count))]))


def test_spilled_registers_and_code_are_charged() -> None:
    """Beyond 255 registers each word goes out and in, and every multiprocessor reads the code."""
    few, many = alive(300), alive(1400)
    assert occupancy.spilled_bytes(few, 1, GPU) == 0
    words = round(occupancy.wanted_registers(many, 1)) - 255
    assert occupancy.spilled_bytes(many, 1, GPU) == 8 * words * 2**24 > 0
    rate = GPU.bytes_per_second * GPU.cached_speedup
    code = (300 + 299) * 16 * GPU.units / rate
    assert terms(few, GPU).overhead == pytest.approx(code)
    assert terms(many, GPU).overhead > 8 * words * 2**24 / rate


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_train", "lstm_lm_train", "bert_infer", "gpt2_train"])
def test_a_gpus_terms_add_up_and_are_finite(name: str) -> None:
    for target in ("sm_70", "sm_89", "sm_90"):
        device = DEVICES[target]
        plan = PLANNERS["exhaustive"](load(name), device, cost, anything)
        for pattern in plan.patterns:
            estimate = terms(pattern, device)
            parts = (estimate.transfers, estimate.rereads, estimate.arithmetic, estimate.recomputed)
            parts += (estimate.launch, estimate.phases, estimate.overhead)
            seconds = cost(pattern, device).seconds
            assert sum(parts) == pytest.approx(seconds) and seconds < 1
            assert min(parts) >= -1e-12


@pytest.mark.parametrize("name", ["mlp_train", "softmax_grad", "bert_infer"])
def test_the_delta_evaluator_leaves_terms_away_and_adds_none(name: str) -> None:
    """Cells alone, and each with all that it reaches: launch, phases, transfers and counts are
    cost's, so with the cycles of every element the two are close."""
    problem = planner_rules.problem(load(name), {}, GPU, cost, anything)
    compared = []
    for _, members in planner_explore.windows(problem, planner_explore.DEFAULTS):
        window = cells.window(problem, members)
        delta = cells.Delta(window)
        for some in {
            part for c in range(len(window.cells)) for part in (1 << c, window.dag.below[c])
        }:
            whole_cost = cost(problem.extractor.pattern(window.members(some)), GPU).seconds
            assert delta.seconds(some) <= whole_cost * (1 + 1e-9)
            compared.append(delta.seconds(some) / whole_cost)
    assert np.median(compared) > 0.9


def test_one_instruction_alone_has_a_wave_too() -> None:
    """Its load, which nothing hides, and its own cycles."""
    x = parameter(0, (32,))
    seconds = single(apply(op.EXPONENTIAL, x), GPU).seconds - GPU.launch_seconds
    assert GPU.timing is not None
    cycles = GPU.timing.cpi.memory + GPU.timing.chain(element(apply(op.EXPONENTIAL, x)))
    assert seconds == pytest.approx(cycles / GPU.timing.hertz, rel=0.01)
