"""Lane loops of float16 by vectors: every operation is rounded as if it were alone."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c, find_compiler
from tests.schedule.modules import apply, module_of, parameter, reduce, whole

Array = np.ndarray[Any, np.dtype[Any]]

ZIG = (sys.executable, "-m", "ziglang", "cc")


def chain(*dims: int) -> Module:
    """Conversions, roundings one after another, a choice, and results of several types."""
    x, y, z = parameter(0, dims), parameter(1, dims, "f16"), parameter(2, dims, "s32")
    half = builder.convert(x, "f16")
    product = apply(op.MULTIPLY, half, y)
    total = apply(op.ADD, product, builder.convert(z, "f16"))
    larger = builder.elementwise(op.COMPARE, total, y, direction="GT")
    chosen = builder.elementwise(op.SELECT, larger, total, half)
    divided = apply(op.DIVIDE, chosen, y)
    outputs = [total, divided, builder.convert(product, "f32"), larger, half]
    return module_of(outputs, [x, y, z])


def draws(*dims: int) -> list[Array]:
    """Float16 of all patterns, float32 beside them and their middles, infinities and NaNs."""
    random = np.random.default_rng(0)
    count = int(np.prod(dims))
    y = random.integers(0, 2**16, count).astype(np.uint16).view(np.float16)
    near = y.astype(np.float32).view(np.uint32) + random.integers(-1, 2, count).astype(np.uint32)
    x = np.where(random.random(count) < 0.5, near, near + np.uint32(0x1000)).view(np.float32)
    x[::7] = random.integers(0, 2**32, x[::7].size, dtype=np.uint64).astype(np.uint32).view("f4")
    z = random.integers(-(2**17), 2**17, count).astype(np.int32)
    return [array.reshape(dims) for array in (x, y, z)]


def scheduled(module: Module, target: str = "cpu-x86-64-v3") -> Kernel:
    return schedule(whole(module), module, DEVICES[target], "kernel", verify=True)


def assert_equal(found: list[Array], expected: list[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        ours, theirs = np.asarray(one).reshape(-1), np.asarray(other).reshape(-1)
        number = theirs == theirs
        assert np.array_equal(ours == ours, number)
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[theirs.dtype.itemsize]
        assert np.array_equal(ours[number].view(kind), theirs[number].view(kind))


@pytest.mark.parametrize("dims", [(5,), (3, 8), (2, 21), (40,), (3, 300), (5000,)])
def test_each_operation_is_rounded_once(dims: tuple[int, ...]) -> None:
    module, inputs = chain(*dims), draws(*dims)
    kernel = scheduled(module)
    library = compile_c(c.render([kernel]), host_device())
    pattern = whole(module)
    order = [module.entry.parameters.index(value) for value in pattern.inputs]
    found = CpuKernel(library.data, kernel).run([inputs[n].reshape(-1) for n in order], {}, 1)
    by_value = dict(zip(module.outputs, evaluate(module, inputs), strict=True))
    assert_equal(found, [by_value[value] for value in pattern.outputs])
    assert not library.scalar_loops, library.scalar_loops


@pytest.mark.parametrize("target", ["cpu-x86-64-v2", "cpu-x86-64-v4"])
@pytest.mark.parametrize("command", [("gcc",), ZIG], ids=["gcc", "clang"])
def test_the_text_is_for_every_target(target: str, command: tuple[str, ...]) -> None:
    """Without the instructions, with those of the widest vectors, and by another compiler."""
    text = c.render([scheduled(chain(3, 300))])
    compile_c(text, DEVICES[target], compiler=find_compiler((command,)))


def test_vectors_are_converted_by_instructions() -> None:
    text = c.render([scheduled(chain(4096))])
    for function in ("st_widen_lanes", "st_narrow_lanes", "st_round_lanes"):
        assert f"{function}(" in text
    assert "/* the rest */" not in text


def test_what_is_only_moved_keeps_its_pattern() -> None:
    x = parameter(0, (64, 48), "f16")
    turned = builder.transpose(x, (1, 0))
    kernel = scheduled(module_of([turned], [x]))
    text = c.render([kernel])
    assert "st_load_f16" not in text and "st_widen_lanes" not in text
    signalling = np.arange(64 * 48, dtype=np.uint16) + np.uint16(0x7C01)
    library = compile_c(text, host_device())
    (moved,) = CpuKernel(library.data, kernel).run([signalling.view("f2").reshape(64, 48)], {}, 1)
    assert np.array_equal(
        np.asarray(moved).view("u2").reshape(48, 64), signalling.reshape(64, 48).T
    )


def test_sums_and_other_types_are_left_as_they_were() -> None:
    half, other = parameter(0, (64, 48), "f16"), parameter(0, (64, 48), "bf16")
    summed = reduce(builder.convert(half, "f32"), (1,))
    doubled = apply(op.ADD, other, other)
    for value, source in ((summed, half), (doubled, other)):
        text = c.render([scheduled(module_of([value], [source]))])
        assert "_lanes(" not in text


def test_a_result_in_the_memory_of_what_is_rounded() -> None:
    """float32 that is rounded, and replaced by another result of the same kernel."""
    x = parameter(0, (4096,))
    doubled = apply(op.ADD, x, x)
    kernel = scheduled(module_of([doubled, builder.convert(x, "f16")], [x]))
    library = compile_c(c.render([kernel]), host_device())
    given = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    memory, half = given.copy(), np.empty(4096, np.float16)
    assert kernel.aliases == ((0, 0),)
    CpuKernel(library.data, kernel).run([memory], {}, 1, [memory, half])
    assert_equal([memory, half], [given + given, given.astype(np.float16)])
