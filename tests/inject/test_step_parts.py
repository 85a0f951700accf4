"""Where the time of a call goes: each moment is of what runs in it, and the parts are the call."""

from __future__ import annotations

from typing import Any

import pytest

from stitchcore.inject import step_parts
from stitchcore.inject.program import ORIGINAL, STITCHED, Instance, Program
from stitchcore.inject.step_recorder import RECORDED, WARM_CALLS, Recorder

COMPUTE, PIPELINE = "tf_Compute/7", "tf_data_private_threadpool/9"


def record(**threads: list[tuple[int, int, str]]) -> str:
    lines = []
    for thread, events in threads.items():
        lines.append(f"\t{thread}")
        lines += [f"{begin}\t{end}\t{name}" for begin, end, name in events]
    return "\n".join(lines) + "\n"


def shares(**threads: list[tuple[int, int, str]]) -> dict[str, float]:
    """Of a call from 1000 to 1100, in hundredths; parts of nothing left out."""
    found = step_parts.shares(record(**threads), 1000, 1100)
    assert sum(found.values()) == pytest.approx(1)
    return {name: round(100 * share) for name, share in found.items() if share}


def test_parts_are_the_call() -> None:
    events = [
        (900, 1010, "dense/MatMul:_MklMatMul"),
        (1010, 1040, "a/Mul:Mul"),
        (1050, 1060, "pool:MaxPool"),
        (1060, 1070, "k:StitchedFusion"),
        (1095, 1200, "b/Sum:Sum"),
    ]
    assert shares(a=events) == {"matrix": 10, "memory": 45, "other": 10, "executor": 35}


def test_side_by_side_time_is_shared_by_what_runs() -> None:
    found = shares(
        a=[(1000, 1100, "m:MatMul")], b=[(1000, 1050, "x:Exp")], c=[(1000, 1050, "y:Exp")]
    )
    assert found == {"matrix": 67, "memory": 33}


def test_input_is_waited_for_only_where_nothing_runs() -> None:
    found = shares(
        tf_data_iterator_get_next=[
            (1000, 1080, "IteratorGetNextOp::DoCompute#id=5#"),
            (1000, 1070, "Iterator::Prefetch"),
        ],
        a=[(1000, 1020, "x:Exp"), (1020, 1021, "IteratorGetNext:IteratorGetNext")],
    )
    assert found == {"memory": 20, "input": 60, "executor": 20}


def test_the_pipelines_own_operations_are_no_part() -> None:
    """In its threads, and in those that it shares with the step."""
    found = shares(
        tf_data_private_threadpool=[(1000, 1100, "map/MatMul:MatMul")],
        tf_data_iterator=[(1000, 1001, "InstantiatedCapturedFunction::RunAsync#id=-8#")],
        a=[
            (1000, 1040, "ExecutorState::Process#id=-8,iter_num=0#"),
            (1005, 1035, "map/MatMul:MatMul"),
            (1040, 1100, "ExecutorState::Process#id=3,iter_num=0#"),
            (1050, 1060, "step/MatMul:MatMul"),
        ],
    )
    assert found == {"matrix": 10, "executor": 90}


def test_what_encloses_operations_is_none_itself() -> None:
    found = shares(
        python=[
            (1000, 1100, "EagerLocalExecute: __inference_step_7"),
            (1000, 1100, "KernelAndDeviceFunc::Run"),
        ],
        a=[(1000, 1010, "x:Exp")],
    )
    assert found == {"memory": 10, "executor": 90}


def test_a_program_that_says_nothing_of_itself_is_other() -> None:
    """XLA's, called as an operation of a graph, or for the whole step."""
    called = "ExecutorState::ProcessAsync::Start#name=f,kernel_type=StatefulPartitionedCall,x=1#"
    found = shares(a=[(1000, 1050, called), (1010, 1020, "x:Exp"), (1050, 1060, "m:MatMul")])
    assert found == {"matrix": 10, "memory": 10, "executor": 40, "other": 40}
    assert shares(a=[(1000, 1100, "__inference_f_7:__inference_f_7")]) == {"other": 100}
    silent = step_parts.shares(record(a=[(1000, 1010, "x:Exp")]), 1000, 1100, silent=True)
    assert (silent["memory"], silent["executor"], silent["other"]) == (0.1, 0.0, 0.9)


def test_an_xla_program_that_tells_of_its_operations_is_them() -> None:
    found = shares(
        a=[
            (1000, 1090, "CpuExecutable::ExecuteAsyncOnStream#module_name=#"),
            (1010, 1050, "MatMul.2#hlo_op=MatMul.2,hlo_module=m#"),
            (1050, 1080, "select_multiply_fusion#hlo_op=select_multiply_fusion#"),
            (1080, 1081, "end: MatMul.2#_ct=0#"),
        ]
    )
    assert found == {"matrix": 40, "memory": 30, "other": 20, "executor": 10}


@pytest.mark.parametrize("text", ["", "\n", "\tthread", "no tab", "1\t2", "\t\n5\t6\ta\u2028b\x0c"])
def test_any_text_is_read(text: str) -> None:
    assert sum(step_parts.shares(text, 0, 10).values()) == pytest.approx(1)


class Native:
    """Notes which calls are recorded."""

    def __init__(self) -> None:
        self.open = 0

    def start_trace(self) -> bool:
        self.open += 1
        return True

    def stop_trace(self) -> str:
        return ""


def recorded(instance: Instance, arms: list[int]) -> list[int]:
    """Numbers of the calls that are recorded, of calls of these arms."""
    native: Any = Native()
    recorder, found = Recorder(native), []
    recorder.follow("step")
    for number, arm in enumerate(arms):
        before = native.open
        recorder.begin("step", instance, arm)
        recorder.end("step", arm, 10)
        found += [number] * (native.open - before)
    return found


def swapped(decided: bool | None, widened: bool = False) -> Instance:
    program = Program("d", swapped=True)
    instance = Instance(program, 0, ORIGINAL, None, None, can_alternate=True)
    instance.decided, instance.widened = decided, widened
    return instance


def test_while_arms_are_compared_only_the_last_of_a_block_is_recorded() -> None:
    """Its interval does not count (timer.py)."""
    blocks = 6 * [ORIGINAL, ORIGINAL, ORIGINAL, STITCHED, STITCHED, STITCHED]
    found = recorded(swapped(None), blocks)
    assert found and {number % 3 for number in found} == {2}
    assert len(found) == 2 * RECORDED
    wide = 4 * (6 * [ORIGINAL] + 6 * [STITCHED])
    found = recorded(swapped(None, widened=True), wide)
    assert found and {number % 6 for number in found} == {5}


def test_one_call_of_a_long_stitched_block_is_recorded() -> None:
    blocks = 4 * (3 * [ORIGINAL] + 57 * [STITCHED])
    found = recorded(swapped(True), blocks)
    stitched = [number for number in found if number % 60 > 2]
    assert len(stitched) == RECORDED
    assert len({number // 60 for number in stitched}) == RECORDED, "two of one block"
    assert {number % 60 for number in found if number not in stitched} == {2}


def test_original_calls_before_the_swap_are_recorded_anew_beside_stitched_ones() -> None:
    instance = Instance(Program("d"), 0, ORIGINAL, None, None, can_alternate=True)
    native: Any = Native()
    recorder = Recorder(native)
    recorder.follow("step")
    for _ in range(WARM_CALLS + RECORDED):
        recorder.begin("step", instance, ORIGINAL)
        recorder.end("step", ORIGINAL, 10)
    assert native.open == RECORDED
    instance.program.swapped = True
    for arm in 5 * (3 * [ORIGINAL] + 3 * [STITCHED]):
        recorder.begin("step", instance, arm)
        recorder.end("step", arm, 10)
    assert native.open == 3 * RECORDED
    assert [one["arm"] for one in recorder.told("step", instance.program)] == [
        "original",
        "stitched",
    ]
    assert not recorder.followed, "it costs nothing any more"


def test_a_step_that_stays_as_it_was_is_recorded_and_let_go() -> None:
    instance = swapped(None)
    instance.program.reason = "slower"
    native: Any = Native()
    recorder = Recorder(native)
    recorder.follow("step")
    for _ in range(20):
        if "step" in recorder.followed:
            recorder.begin("step", instance, ORIGINAL)
            recorder.end("step", ORIGINAL, 10)
    assert native.open == RECORDED and not recorder.followed
    assert [one["arm"] for one in recorder.told("step", instance.program)] == ["original"]
