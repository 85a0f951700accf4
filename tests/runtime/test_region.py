"""Regions verified on a device: the stand-in driver, and C for what kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from stitchcore.compiler.regions import CompiledRegions, compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refused
from stitchcore.hlo.text.parser import parse
from stitchcore.launch.region_program import RegionProgram
from stitchcore.runtime.cuda_library import DeviceBuffer, LaunchError, LaunchReason
from stitchcore.runtime.gpu.region import REASONS, reason_of
from stitchcore.verify import testbed as testbeds
from stitchcore.verify.regions import References, measure, verify
from tests.launch.standin_cuda import Live, Standin, open_library
from tests.runtime.host import HostDevice, Kernels, in_c

KEY, DEVICE = "region", DEVICES["sm_90"]
Made = tuple[CompiledRegions, dict[str, RegionProgram]]

TEXT = """HloModule m

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}

ENTRY main {
  a = f32[48,40] parameter(0)
  w = f32[40,8] parameter(1)
  zero = f32[] constant(0)
  t = f32[48,40] tanh(a)
  r = f32[48] reduce(t, zero), dimensions={1}, to_apply=add
  b = f32[48,40] broadcast(r), dimensions={0}
  c = f32[48,40] multiply(t, b)
  ROOT out = (f32[48,40], f32[48]) tuple(c, r)
}
"""


def right(given: Sequence[Any]) -> list[Any]:
    t = np.tanh(given[0])
    return [t * t.sum(axis=1, keepdims=True), t.sum(axis=1)]


def wrong(given: Sequence[Any]) -> list[Any]:
    first, second = right(given)
    return [first, second * 1.5]


def nothing(given: Sequence[Any]) -> list[Any]:
    return []


@pytest.fixture(scope="module")
def made() -> Made:
    found = compile_regions({KEY: parse(TEXT)}, DEVICE, BuildOptions())
    assert found.refusals == ()
    return found, {KEY: program(found, KEY, DEVICE)}


class Failing(HostDevice):
    """Its own calls of the driver fail as CuPy's do."""

    def allocate(self, size: int) -> DeviceBuffer:
        try:
            return super().allocate(size)
        except AssertionError as error:
            raise MemoryError(str(error)) from None

    def release(self, buffer: DeviceBuffer) -> None:
        try:
            super().release(buffer)
        except AssertionError as error:
            raise RuntimeError(str(error)) from None

    def synchronize(self) -> None:
        try:
            super().synchronize()
        except AssertionError as error:
            raise RuntimeError(str(error)) from None


@contextmanager
def opened_testbed(
    standin: Standin, made: Made, framework: Callable[[Sequence[Any]], list[Any]] = right
) -> Iterator[testbeds.Testbed]:
    """On the stand-in; when it is closed nothing of it is left."""
    kernels = [launch.kernel for launch in made[1][KEY].launches]
    standin.on_launch(Kernels(kernels, in_c(kernels)))
    references = References(framework, nothing)
    cuda = open_library(standin)
    with standin.context():
        on_gpu = testbeds.gpu_testbed(
            Failing(standin), cuda, lambda f: references, lambda f: references
        )
        yield on_gpu
        on_gpu.close()
        cuda.close()


def verified(made: Made, on: testbeds.Testbed) -> Any:
    references = {KEY: on.references(None)}
    checked = verify(*made, references, None, on.runners)
    if checked.refused:
        return checked
    return measure(*made, {KEY: 1.0}, references, checked, DEVICE, 1, None, 0.5, on.runners)


def test_a_region_is_verified_and_timed_on_the_device(standin: Standin, made: Made) -> None:
    with opened_testbed(standin, made) as on:
        found = verified(made, on)
    timing = found.regions[KEY].timing
    assert found.regions[KEY].check.passed and found.regions[KEY].check.informative
    assert set(timing.seconds) == {"framework", "stitched", "call"}
    assert standin.errors() == []


def test_a_wrong_region_is_refused(standin: Standin, made: Made) -> None:
    """What the framework computes there is another thing."""
    with opened_testbed(standin, made, wrong) as on:
        found = verified(made, on)
    assert found.refused[KEY].reason is Reason.WRONG_RESULT
    assert standin.errors() == []


def test_a_wrong_kernel_is_refused(standin: Standin, made: Made) -> None:
    with opened_testbed(standin, made) as on:
        standin.on_launch(lambda ran: None)  # writes nothing
        found = verified(made, on)
    assert found.refused[KEY].reason is Reason.WRONG_RESULT


@pytest.mark.slow
def test_each_failure_of_the_driver_is_a_refusal_and_leaves_nothing(
    standin: Standin, made: Made
) -> None:
    """Every call of a verification's life fails once, in turn."""
    reasons = set()
    for call in range(1, 400):
        with opened_testbed(standin, made) as on:
            standin.fail(call)
            try:
                found = verify(*made, {KEY: on.references(None)}, None, on.runners)
                refusal = found.refused.get(KEY)
            except Refused as refused:
                refusal = refused.refusal
            failed = standin.did_fail()
            standin.fail(0)
        assert standin.errors() == [] and standin.live() == Live(), call
        if not failed:
            assert refusal is None
            break
        if refusal is not None:
            reasons.add(refusal.reason)
    else:
        raise AssertionError("a verification has more calls than that")
    assert call > 10
    assert reasons <= {*REASONS.values(), Reason.KERNEL_FAILED} and len(reasons) > 1


def test_without_a_gpu_there_is_no_testbed_and_a_reason() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")
    here = testbeds.open_testbed(DEVICE)
    if isinstance(here, testbeds.Testbed):
        here.close()
        pytest.skip("there is a GPU here")
    assert here.reason in (Reason.NO_DEVICE, Reason.WRONG_TARGET)
    assert "this worker's TensorFlow" in here.detail or "GPU" in here.detail


@pytest.mark.parametrize("reason", list(LaunchReason))
def test_every_error_of_the_library_has_a_reason(reason: LaunchReason) -> None:
    assert isinstance(reason_of(LaunchError(reason, "why")), Reason)
