"""A graph that is built anew with every call is looked at for a while, and then left alone."""

from __future__ import annotations

import json
from pathlib import Path
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


def test_the_hook_says_so_once_and_looks_no_more(tmp_path: Path) -> None:
    """What tf.data calls of a step has no caller in Python."""
    graph = step("CPU:0")
    plugin: Any = Asked(graph)
    config = settings.read({"STITCH_STORE": str(tmp_path), "STITCH_SESSION": "s"})
    hook, data = Hook(config, plugin, "2.21.0"), graph.SerializeToString()
    for _ in range(300):
        assert hook.on_graph(data, 1) is None
    assert OFTEN < plugin.times < 200
    before = plugin.times
    graph.node.add(name="another", op="NoOp")
    assert hook.on_graph(graph.SerializeToString(), 1) is None and plugin.times == before + 1
    lines = (tmp_path / "sessions" / "s" / "events.jsonl").read_text().splitlines()
    told = [one for one in map(json.loads, lines) if one.get("reason") == reasons.UNMEASURED]
    assert {one["type"] for one in told} == {"disabled", "refused"} and len(told) == 2
    assert all("anew with every call" in one["detail"] for one in told)
