"""Rows that walk backwards: groups are turned a vector at a time, and lines are asked for ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.codegen.c_backward_rows import AHEAD_BYTES, LONGEST_RUN, ahead
from stitchcore.codegen.c_row_digits import counted
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Loop
from stitchcore.loop_ir.visitor import loads, statements
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.agree import DEVICE, check
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, whole

TARGETS = ("cpu-x86-64-v2", "cpu-x86-64-v3", host_device().target)


def flipped(dims: tuple[int, ...], dtype: str = "f32", opcode: str | None = None) -> Module:
    """Each row of pixels from right to left, and `opcode` of it."""
    x = parameter(0, dims, dtype)
    turned = builder.reverse(x, (len(dims) - 2,))
    return module_of([turned if opcode is None else apply(opcode, turned)], [x])


def text(module: Module) -> str:
    return c.render([schedule(whole(module), module, DEVICE, "kernel", verify=True)])


# ---- groups turned -------------------------------------------------------------------------------
@pytest.mark.parametrize("target", dict.fromkeys(TARGETS))
@pytest.mark.parametrize("dtype", ["f32", "s32", "f64", "s64"])
def test_no_element_is_out_of_place(target: str, dtype: str) -> None:
    """Vectors hold several of the groups, one or none; tasks begin in the midst of a run."""
    shapes = [(23, 41, 9, g) for g in (2, 3, 4, 5, 7)] + [(31, 77, g) for g in (8, 12, 15)]
    modules = [flipped(dims, dtype) for dims in shapes]
    kernels = [schedule(whole(m), m, DEVICES[target], f"kernel{n}") for n, m in enumerate(modules)]
    source = c.render(kernels)
    size = "8" if "64" in dtype else "4"
    assert source.count(f"st_flip_{size}(") == len(modules)
    library = load_library(compile_c(source, DEVICES[target]).data)
    for module, kernel in zip(modules, kernels, strict=True):
        inputs = draw_inputs(whole(module), 0)
        [found] = CpuKernel(library, kernel).run(inputs, {}, threads=1)
        assert found.tobytes() == np.flip(inputs[0], -2).tobytes()


@pytest.mark.parametrize("channels", [2, 3, 5, 12])
def test_what_is_moved_first_is_turned(channels: int) -> None:
    module = flipped((7, 20, 9, channels), opcode=op.TANH)
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert "st_flip_4(local" in c.render([kernel]).replace("&", "")


def test_what_is_only_flipped_is_written_forwards() -> None:
    assert "st_prefetch_near(&in0[" in text(flipped((23, 41, 9, 3)))


@pytest.mark.parametrize(("dtype", "channels"), [("f16", 3), ("s8", 3), ("f32", 1), ("f32", 16)])
def test_what_no_shuffle_turns_is_moved_one_by_one(dtype: str, channels: int) -> None:
    module = flipped((7, 20, 9, channels), dtype)
    assert "st_flip" not in text(module)
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


@pytest.mark.parametrize("group", [2, 3, 5, 8, 12, 15])
def test_nothing_beside_the_groups_is_touched(group: int) -> None:
    """Both arrays end where memory ends, so a child that reads or writes further is killed."""
    source = """#include "stitch_cpu.h"
ST_EXPORT void flip(void *to, const void *from, long count, long group) {
  st_flip_4(to, from, count, group);
}"""
    flip = load_library(compile_c(source, host_device()).data).flip
    child = os.fork()
    if child == 0:
        os._exit(0 if all(_flips(flip, group, count) for count in range(1, 40)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def _flips(flip: Callable[..., object], group: int, count: int) -> bool:
    source, target = _at_the_end_of_memory(group * count), _at_the_end_of_memory(group * count)
    source[:] = np.arange(group * count)
    place, start = ctypes.c_void_p(target.ctypes.data), ctypes.c_void_p(source.ctypes.data)
    flip(place, start, ctypes.c_long(count), ctypes.c_long(group))
    turned = source.reshape(count, group)[::-1].reshape(-1)
    return np.array_equal(target, turned)


def _at_the_end_of_memory(size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """`size` elements before a page that may not be touched."""
    pages = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.int32)
    page = ctypes.c_void_p(pages.ctypes.data + mmap.PAGESIZE)
    ctypes.CDLL(None).mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), 0)
    end = mmap.PAGESIZE // 4
    return pages[end - size : end]


# ---- lines asked for ahead -----------------------------------------------------------------------
def row_loop(module: Module) -> Loop:
    kernel = schedule(whole(module), module, DEVICE, "kernel", verify=True)
    body = kernel.phases[0].sections[0].body
    return next(s for s in statements(body) if isinstance(s, Loop))


@pytest.mark.parametrize("dims", [(64, 20, 16), (8, 30, 56, 16), (8, 30, 28, 32)])
def test_what_is_asked_for_is_what_later_rows_read(dims: tuple[int, ...]) -> None:
    module = flipped(dims, opcode=op.ABS)
    rows = counted(row_loop(module))
    assert rows is not None
    [later] = ahead(rows)
    [load] = loads(rows.loop.body)
    run = 4 * dims[-1] * dims[-2]
    assert later.size == 4 * dims[-1]
    lanes = dict.fromkeys(index.names(load.indices[-1]), 0)
    now = {digit.variable: 1 for digit in rows.digits} | lanes
    further = now | {rows.digits[1].variable: 1 - (-AHEAD_BYTES // run)}
    place = index.evaluate(later.place, now)
    flat = 0
    for node, extent in zip(load.indices, load.buffer.dims, strict=True):
        assert isinstance(extent, int)
        flat = flat * extent + index.evaluate(node, further)
    assert place == flat
    assert "st_prefetch_near(&in0[" in text(module)


def test_a_long_run_is_followed_by_the_processor() -> None:
    assert "st_prefetch" not in text(flipped((64, LONGEST_RUN // 64 + 1, 16), opcode=op.ABS))
    assert "st_prefetch" in text(flipped((64, LONGEST_RUN // 64, 16), opcode=op.ABS))


def test_rows_that_walk_forwards_are_too() -> None:
    x = parameter(0, (8, 30, 56, 16))
    part = builder.slice_(x, [(0, 8, 1), (2, 30, 1), (1, 50, 1), (0, 16, 1)])
    assert "st_prefetch" not in text(module_of([apply(op.ABS, part)], [x]))


def test_so_is_what_is_written_backwards() -> None:
    """A reversed output is written where its operand is computed."""
    x = parameter(0, (8, 30, 28, 32))
    module = module_of([builder.reverse(apply(op.ABS, x), (2,))], [x])
    assert "st_prefetch_near(&out0[" in text(module)
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)
