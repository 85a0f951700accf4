"""Where an artifact is verified and timed: this machine's processor, or a GPU of its target.

A verification for a GPU is worth something only where both are on one: our launches, by the very
tables that a job will load, and TensorFlow's own operations, which are the reference
(docs/decisions.md 9, 31). Where either is missing there is no testbed, and the artifact says that
nobody measured it, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcore.compiler.regions import CompiledRegions
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.inject import build, reasons, target
from stitchcore.launch.region_program import RegionProgram
from stitchcore.runtime.cuda_library import CudaLibrary, LaunchError, Program
from stitchcore.runtime.gpu.device import LaunchDevice
from stitchcore.runtime.gpu.driver_device import DriverDevice
from stitchcore.runtime.gpu.region import GpuRegion, reason_of
from stitchcore.verify.region import RegionRunner
from stitchcore.verify.regions import References, Runners, on_processor

ReferencesOf = Callable[[Any], References]
"""Of a region as a function of TensorFlow's (tensorflow.lower.Subgraph)."""


@dataclass(frozen=True)
class Testbed:
    """`runners` loads regions; `references` computes one as TensorFlow does, `baselines` does so to
    be timed (its results may be missing). `close` gives back what was loaded."""

    runners: Runners
    references: ReferencesOf
    baselines: ReferencesOf
    close: Callable[[], None]


def open_testbed(device: Device) -> Testbed | Refusal:
    """The testbed for artifacts of `device`'s target here, or why there is none."""
    if device.kind == "cpu":
        return _processor()
    try:
        return _gpu(device.target)
    except Refused as refused:
        return refused.refusal


def _processor() -> Testbed:
    by_key: dict[str, References] = {}

    def references(function: Any) -> References:
        from stitchcore.tensorflow import run_region

        if function.key not in by_key:
            plain, call = run_region.runner(function), run_region.empty(function)
            by_key[function.key] = References(plain, call, function.judged)
        return by_key[function.key]

    return Testbed(on_processor, references, references, lambda: None)


def _gpu(required_target: str) -> Testbed:
    """Raises Refused: NO_DEVICE, WRONG_TARGET, NO_COMPILER (of the launch library)."""
    seen = target.tf_devices()
    try:
        present_target = target.of_graph(("/device:GPU:0",), "", lambda: seen)
    except reasons.Refused as refused:
        detail = f"this worker's TensorFlow: {refused.detail}"
        raise Refused(required_target, Reason(refused.reason), detail) from refused
    if present_target != required_target:
        raise Refused(required_target, Reason.WRONG_TARGET, f"the GPU here is {present_target}")
    device = DriverDevice()
    try:
        cuda = CudaLibrary(build.build_launch(), Path(device.driver))
    except (LaunchError, build.BuildError) as error:
        raise Refused(required_target, Reason.NO_DEVICE, f"the launch library: {error}") from error
    testbed = gpu_testbed(device, cuda, _on_gpu, _timed_on_gpu)

    def close() -> None:
        testbed.close()
        cuda.close()
        device.close()

    return Testbed(testbed.runners, testbed.references, testbed.baselines, close)


def _on_gpu(function: Any) -> References:
    import tensorflow as tf

    from stitchcore.tensorflow import run_region

    def placed(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def on_first(inputs: Any) -> Any:
            with tf.device("/GPU:0"):
                return run(inputs)

        return run_region.within_device_memory(on_first)

    plain, empty = run_region.runner(function), run_region.empty(function)
    return References(placed(plain), placed(empty), function.judged)


def _timed_on_gpu(function: Any) -> References:
    from stitchcore.tensorflow import lower, run_region

    def timed(region: Callable[..., Any]) -> Callable[[Any], Any]:
        return run_region.within_device_memory(run_region.on_gpu(region))

    return References(
        timed(lower.as_function(function, jit=False)), timed(run_region.nothing()), function.judged
    )


def gpu_testbed(
    device: LaunchDevice, cuda: CudaLibrary, references: ReferencesOf, baselines: ReferencesOf
) -> Testbed:
    """A testbed on `device`, whose context is current in this thread. It closes neither."""
    loaded: list[Program] = []
    regions: list[GpuRegion] = []

    def runners(
        compiled: CompiledRegions, programs: Mapping[str, RegionProgram]
    ) -> Mapping[str, RegionRunner]:
        tables = {}
        for number in {
            launch.library for program in programs.values() for launch in program.launches
        }:
            loaded.append(_loaded(cuda, compiled.libraries[number].data))
            tables[number] = loaded[-1]
        loadable = {
            key: GpuRegion(program, [tables[launch.library] for launch in program.launches], device)
            for key, program in programs.items()
        }
        regions.extend(loadable.values())
        return loadable

    def close() -> None:
        for region in regions:
            region.release()
        while loaded:
            loaded.pop().unload()

    return Testbed(runners, references, baselines, close)


def _loaded(cuda: CudaLibrary, table: bytes) -> Program:
    try:
        return cuda.load(table)
    except LaunchError as error:
        raise Refused("launch table", reason_of(error), str(error)) from error
