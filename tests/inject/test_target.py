"""The target that a graph is handed in for: where its nodes are placed decides, and what the job's
TensorFlow tells of its GPUs; what it does not tell is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stitchcore.inject import reasons, target
from stitchcore.inject.target import Devices, Gpu

CPU = "cpu-x86-64-v4"
PLACE = "/job:localhost/replica:0/task:0/device:"
H100, H200 = Gpu("NVIDIA H100 80GB HBM3", (9, 0)), Gpu("NVIDIA H200", (9, 0))
A100, T4 = Gpu("NVIDIA A100-SXM4-40GB", (8, 0)), Gpu("Tesla T4", (7, 5))
UNTOLD = Gpu("AMD Instinct MI300X", None)


def asked(devices: Devices, *numbers: str) -> str:
    placed = {"", f"{PLACE}CPU:0", *(f"{PLACE}{number}" for number in numbers)}
    return target.of_graph(placed, CPU, lambda: devices)


@pytest.mark.parametrize(
    ("gpus", "numbers", "expected"),
    [((H100,), ("GPU:0",), "sm_90"), ((H100, H200), ("GPU:0", "GPU:1"), "sm_90"),
     ((A100,), ("gpu:0",), "sm_80"), ((Gpu("B200", (10, 0)),), ("GPU:0",), "sm_100"),
     ((T4,), ("GPU:0",), "sm_75"),
     ((H100,), (), CPU), ((H100, A100), (), CPU)],
)  # fmt: skip
def test_a_graph_is_for_what_it_is_placed_on(
    gpus: tuple[Gpu, ...], numbers: tuple[str, ...], expected: str
) -> None:
    assert asked(Devices(True, gpus), *numbers) == expected


def test_a_device_has_the_number_that_cuda_gives_it() -> None:
    """Of four GPUs TensorFlow was shown the last two, of which the first is two devices."""
    placed = {"", f"{PLACE}CPU:0", f"{PLACE}GPU:1", f"{PLACE}GPU:2", f"{PLACE}GPU:7"}
    assert target.cuda_numbers(placed, lambda: [2, 2, 3]) == {2, 3}


def test_a_graph_on_the_processor_asks_nothing_of_gpus() -> None:
    def never() -> Devices:
        raise AssertionError("TensorFlow was asked for its GPUs")

    def none() -> list[int]:
        raise AssertionError("TensorFlow was asked for its GPUs")

    assert target.cuda_numbers({f"{PLACE}CPU:0"}, none) == frozenset()

    assert target.of_graph({"", f"{PLACE}CPU:0", "/device:XLA_CPU_JIT:0"}, CPU, never) == CPU


@pytest.mark.parametrize(
    ("devices", "reason", "said"),
    [(Devices(False, (H100,)), reasons.WRONG_TARGET, "without CUDA"),
     (Devices(False, ()), reasons.WRONG_TARGET, "without CUDA"),
     (Devices(True, ()), reasons.NO_DEVICE, "lists none"),
     (Devices(True, (UNTOLD,)), reasons.WRONG_TARGET, "no compute capability of AMD Instinct"),
     (Devices(True, (H100, A100)), reasons.WRONG_TARGET, "of several kinds: sm_80 .*, sm_90"),
     (Devices(True, (H100, UNTOLD)), reasons.WRONG_TARGET, "no compute capability")],
)  # fmt: skip
def test_what_is_not_known_is_refused_and_never_guessed(
    devices: Devices, reason: str, said: str
) -> None:
    with pytest.raises(reasons.Refused, match=said) as refused:
        asked(devices, "GPU:0")
    assert refused.value.reason == reason


def test_tensorflow_is_asked_as_it_answers() -> None:
    """The CPU's wheel: built without CUDA, no GPU."""
    pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")
    found = target.tf_devices()
    assert found.gpus == () and found.cuda in (False, True)


def test_details_become_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CUDA build answers them: tf.config.experimental.get_device_details."""
    pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")
    from tensorflow.python.eager import context
    from tensorflow.python.framework import config
    from tensorflow.python.platform import sysconfig

    details = {"device_name": "NVIDIA H100 80GB HBM3", "compute_capability": (9, 0)}

    def visible(kind: str) -> list[Any]:
        assert kind == "GPU"
        return [context.PhysicalDevice("/physical_device:GPU:0", "GPU")] * 2

    answers = iter((details, {}))
    monkeypatch.setattr(config, "get_visible_devices", visible)
    monkeypatch.setattr(config, "get_device_details", lambda device: next(answers))
    monkeypatch.setattr(sysconfig, "get_build_info", lambda: {"is_cuda_build": True})
    assert target.tf_devices() == Devices(True, (H100, Gpu("/physical_device:GPU:0", None)))
