"""A job with a GPU asks for it: the hook on a step that TensorFlow has placed there.

The graph is a real one with its devices changed, the devices that TensorFlow reports are made up:
no GPU is here. Everything between is the job side's own.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from tensorflow.core.framework import graph_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2 as performance

from stitchcore.inject import reasons, settings, target
from stitchcore.inject.hook import Hook
from stitchcore.inject.target import Devices, Gpu
from stitchcore.service.queues import queue_name

CAPTURED = Path(__file__).resolve().parents[1] / "optimize" / "requests" / "mlp"
H100, UNTOLD = Gpu("NVIDIA H100 80GB HBM3", (9, 0)), Gpu("AMD Instinct MI300X", None)


class Shown:
    """The plug-in's answers about one graph, as Grappler would give them."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def verify(self, signature: bytes, message: bytes, public_key: bytes) -> bool:
        return False

    def preserved(self, item: int) -> list[str]:
        return list(json.loads((CAPTURED / "meta.json").read_text())["preserve"])

    def fetched(self, item: int) -> list[str]:
        return Shown.preserved(self, item)  # nothing is fed

    def shapes(self, item: int, names: list[str]) -> list[tuple[int, int, bytes]]:
        found = []
        for index, node in enumerate(self.graph.node):
            for output, shape in enumerate(node.attr["_output_shapes"].list.shape):
                told = performance.OpInfo.TensorProperties(shape=shape)
                found.append((index, output, told.SerializeToString()))
        return found

    def failures(self) -> dict[str, str]:
        return {}


def step(device: str) -> Any:
    data = lzma.decompress((CAPTURED / "graph.pb.xz").read_bytes())
    graph = graph_pb2.GraphDef.FromString(data)
    for node in graph.node:
        node.device = node.device.replace("CPU:0", device)
    return graph


def shown(
    device: str, devices: Devices, store: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Refusals that were told, and what was handed in, after the hook has seen the step."""
    monkeypatch.setattr(target.of_graph, "__defaults__", (lambda: devices,))
    config = settings.read({"STITCH_STORE": str(store), "STITCH_SESSION": "s"})
    graph = step(device)
    plugin: Any = Shown(graph)
    assert Hook(config, plugin, "2.21.0").on_graph(graph.SerializeToString(), 1) is None
    lines = (store / "sessions" / "s" / "events.jsonl").read_text().splitlines()
    refused = [one for one in map(json.loads, lines) if one["type"] == "refused"]
    metas = [json.loads(path.read_text()) for path in store.glob("requests/*/meta.json")]
    return refused, metas


@pytest.mark.parametrize(
    ("device", "expected"),
    [("GPU:0", "sm_90"), ("CPU:0", target.detect(target.cpu_flags()))],
)
def test_a_step_is_handed_in_for_what_it_runs_on(
    device: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process with a GPU either may be."""
    refused, [meta] = shown(device, Devices(True, (H100,)), tmp_path, monkeypatch)
    assert refused == [] and meta["target"] == expected
    assert queue_name(meta["target"], meta["tf"]) == f"stitch.{expected}.tf2.21"


def test_threads_are_those_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that holds three of a node's many processors."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 5, 7})
    refused, [meta] = shown("CPU:0", Devices(True, (H100,)), tmp_path, monkeypatch)
    assert refused == [] and meta["threads"] == 3


@pytest.mark.parametrize(
    ("devices", "reason", "said"),
    [(Devices(True, (UNTOLD,)), reasons.WRONG_TARGET, "no compute capability of AMD Instinct"),
     (Devices(False, (H100,)), reasons.WRONG_TARGET, "built without CUDA"),
     (Devices(True, ()), reasons.NO_DEVICE, "TensorFlow lists none")],
)  # fmt: skip
def test_a_gpu_that_is_not_known_is_a_refusal_that_is_told_and_counted(
    devices: Devices,
    reason: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Events are what the gateway counts; nothing is handed in, and the job has one line."""
    [refused], metas = shown("GPU:0", devices, tmp_path, monkeypatch)
    assert (refused["reason"], metas) == (reason, []) and said in refused["detail"]
    assert f"[stitch] {reason}: " in capfd.readouterr().err
