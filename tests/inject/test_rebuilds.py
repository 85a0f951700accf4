"""A graph that is built anew with every call is looked at for a while, and then left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from stitchcore.inject import reasons, settings
from stitchcore.inject.hook import Hook
from stitchcore.inject.rebuilds import LEAST_SECONDS, OFTEN, SHARE, Rebuilds
from tests.inject.test_gpu_job import Shown, step


def looked(seconds: float, every: float, times: int) -> int | None:
    """The look after which there is none any more, of looks of `seconds` each `every` second."""
    rebuilds = Rebuilds()
    ends = ((one, rebuilds.took(one * every, one * every + seconds)) for one in range(times))
    return next((one for one, ended in ends if ended), None)


def test_what_costs_more_than_its_share_is_left() -> None:
    assert looked(0.003, 0.03, 1000) == int(LEAST_SECONDS / 0.003)  # a sum worth telling
    assert looked(LEAST_SECONDS, 1.0, 1000) == OFTEN  # nor before it was often


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_what_costs_less_goes_on(share: float) -> None:
    """An epoch of minutes is built anew for milliseconds."""
    assert looked(SHARE * share, 1.0, 20_000) is None


def test_the_share_is_of_the_time_since_the_first_one() -> None:
    assert looked(SHARE * 1.1, 1.0, 20_000) is not None


class Asked(Shown):
    """Counts how often a graph is looked at."""

    times = 0

    def preserved(self, item: int) -> list[str]:
        self.times += 1
        return super().preserved(item)


def hook_of(folder: Path, graph: Any) -> tuple[Hook, Any]:
    plugin: Any = Asked(graph)
    config = settings.read({"STITCH_STORE": str(folder), "STITCH_SESSION": "s"})
    return Hook(config, plugin, "2.21.0"), plugin


def events(folder: Path, reason: str) -> list[dict[str, Any]]:
    lines = (folder / "sessions" / "s" / "events.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one.get("reason") == reason]


def test_the_hook_says_so_once_and_looks_no_more(tmp_path: Path) -> None:
    """What tf.data calls of a step has no caller in Python."""
    graph = step("CPU:0")
    hook, plugin = hook_of(tmp_path, graph)
    data = graph.SerializeToString()
    for _ in range(300):
        assert hook.on_graph(data, 1) is None
    assert OFTEN < plugin.times < 200
    before = plugin.times
    graph.node.add(name="another", op="NoOp")
    assert hook.on_graph(graph.SerializeToString(), 1) is None and plugin.times == before + 1
    told = events(tmp_path, reasons.UNMEASURED)
    assert {one["type"] for one in told} == {"disabled", "refused"} and len(told) == 2
    assert all("anew with every call" in one["detail"] for one in told)


def twin(graph: Any) -> Any:
    """A step of as many bytes that computes something else."""
    other = type(graph).FromString(graph.SerializeToString())
    node = next(node for node in other.node if node.op == "MatMul")
    node.attr["transpose_a"].b = not node.attr["transpose_a"].b
    return other


def test_all_steps_that_are_left_are_told_of(tmp_path: Path) -> None:
    """Those of tf.data are known by their bytes alone: none of the two is called stitched."""
    graph = step("CPU:0")
    both = [one.SerializeToString() for one in (graph, twin(graph))]
    assert len(both[0]) == len(both[1])
    hook, _ = hook_of(tmp_path, graph)
    for _ in range(150):
        assert [hook.on_graph(data, 1) for data in both] == [None, None]
    left = [one["digest"] for one in events(tmp_path, reasons.UNMEASURED)]
    assert len(set(left)) == 2


def test_what_python_calls_as_well_keeps_its_graph(tmp_path: Path) -> None:
    """That it is left where tf.data calls it is told of it, and no more."""
    graph = step("CPU:0")
    hook, _ = hook_of(tmp_path, graph)
    called: Any = SimpleNamespace(runs=lambda program: True)
    hook._instances["a caller"] = called
    for _ in range(150):
        assert hook.on_graph(graph.SerializeToString(), 1) is None
    [told] = events(tmp_path, reasons.UNMEASURED)
    assert told["type"] == "refused" and told["digest"] and "of another graph" in told["detail"]


def test_a_step_in_a_forked_process_is_told_of_once(tmp_path: Path) -> None:
    graph = step("CPU:0")
    hook, _ = hook_of(tmp_path, graph)
    child = os.fork()
    if not child:
        answers = [hook.on_graph(graph.SerializeToString(), 1) for _ in range(2)]
        os._exit(answers != [None, None])
    assert os.waitpid(child, 0)[1] == 0
    [told] = events(tmp_path, reasons.CHILD_PROCESS)
    assert told["process"] == child and f"process {os.getpid()} has forked" in told["detail"]
