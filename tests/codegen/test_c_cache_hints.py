"""Streamed stores and prefetches change where bytes go, never which bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen import c, cuda
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Buffer, InRange, Kernel, Prefetch, Role, Store
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.visitor import statements
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule import cache_hints
from stitchcore.toolchain.c_compiler import compile_c
from tests.loop_ir.sample import softmax

ALWAYS = InRange(1, 1, 2)


def hinted(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """`kernel` with hints as if it were too large for any cache."""
    with monkeypatch.context() as patch:
        patch.setattr(cache_hints, "STREAM_BYTES", 1)
        patch.setattr(cache_hints, "LONG_RUN", 64)
        patch.setattr(cache_hints, "SHORT_RUN", 64)
        patch.setattr(cache_hints, "LEAST_AHEAD", 64)
        return replace(kernel, phases=cache_hints.hint(kernel.buffers, kernel.phases))


def compiled(kernel: Kernel, target: str = "cpu-x86-64-v3") -> CpuKernel:
    return CpuKernel(compile_c(c.render([kernel]), DEVICES[target]).data, kernel)


def misaligned(shape: tuple[int, ...], dtype: Any, offset: int) -> Any:
    """An array that begins `offset` bytes after a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = np.zeros(size + 128, np.uint8)
    start = -block.ctypes.data % 64 + offset
    return block[start : start + size].view(dtype).reshape(shape)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu-x86-64-v2", "cpu-x86-64-v3"])
@pytest.mark.parametrize(
    ("columns", "dtype"), [(16, "f32"), (36, "f32"), (1000, "f32"), (2500, "f32"), (96, "bf16")]
)
def test_same_bits_as_without_hints(
    monkeypatch: pytest.MonkeyPatch, target: str, columns: int, dtype: str
) -> None:
    plain = softmax(30, columns, dtype)
    kernel = hinted(plain, monkeypatch)
    assert "st_stream(" in c.render([kernel]) and "st_prefetch" in c.render([kernel])
    kind = DTYPES[dtype].numpy
    x = np.random.default_rng(0).standard_normal((30, columns)).astype(kind)
    [expected] = compiled(plain, target).run([x])
    for offset in (0, 16, 48):
        out = misaligned((30, columns), kind, offset)
        compiled(kernel, target).run([x], outputs=[out], threads=2)
        np.testing.assert_array_equal(out.view(np.uint8), expected.view(np.uint8))


def test_an_output_in_its_inputs_memory_is_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hinted(replace(softmax(8, 64), aliases=((0, 0),)), monkeypatch)
    assert "(const void *)y != (const void *)x" in c.render([kernel])
    x = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    [expected] = compiled(kernel).run([x.copy()])
    [found] = compiled(kernel).run([x], outputs=[x])
    np.testing.assert_array_equal(found, expected)


def test_hints_are_in_the_text_and_mean_nothing_to_the_interpreter_and_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = softmax(8, 64)
    kernel = hinted(plain, monkeypatch)
    text = print_kernel(kernel)
    assert "streams in_range(" in text and "prefetch x[row + 1, " in text
    assert parse_kernel(text) == kernel
    x = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    for found, expected in zip(interpret(kernel, [x]), interpret(plain, [x]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert cuda.render([kernel]) == cuda.render([plain])


@pytest.mark.slow
def test_sizes_decide_in_the_call_where_they_are_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same library takes both ways; the results do not tell which."""
    text = print_kernel(softmax(8, 64)).replace("softmax()", "softmax(B)")
    text = text.replace("f32[8, 64]", "f32[B, 64]").replace("task < 2", "task < (B + 3) // 4")
    text = text.replace("min(task * 4 + 4, 8)", "min(task * 4 + 4, B)")
    with monkeypatch.context() as patch:
        patch.setattr(cache_hints, "STREAM_BYTES", 10 * 64 * 4 * 2)
        patch.setattr(cache_hints, "SHORT_RUN", 64)
        plain = parse_kernel(text)
        kernel = replace(plain, phases=cache_hints.hint(plain.buffers, plain.phases))
    assert "const bool y_streams = (" in c.render([kernel])
    for rows in (3, 9, 10, 21):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        [found] = compiled(kernel).run([x], {"B": rows})
        [expected] = compiled(plain).run([x], {"B": rows})
        np.testing.assert_array_equal(found, expected)


def stores(kernel: Kernel) -> list[tuple[Buffer, bool]]:
    return [
        (s.buffer, s.streams is not None)
        for phase in kernel.phases
        for section in phase.sections
        for s in statements(section.body)
        if isinstance(s, Store) and s.buffer.role is Role.OUTPUT
    ]


def test_small_kernels_do_not_stream_and_large_ones_do() -> None:
    """Nor do large ones whose runs are short."""
    for rows, columns, expected in ((1024, 768, False), (20480, 768, True), (81920, 256, False)):
        kernel = softmax(rows, columns)
        kernel = replace(kernel, phases=cache_hints.hint(kernel.buffers, kernel.phases))
        assert [streams for _, streams in stores(kernel)] == [expected]


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((Variable("i"), Variable("j")), True),
        ((Variable("i"), Variable("j") + 3), True),
        ((0, Variable("i") * 4 + Variable("j")), True),
        ((Variable("j"), Variable("i")), False),
        ((Variable("i"), Variable("j") * 2), False),
        ((Variable("i"), Variable("j") + Variable("j")), False),
        ((Variable("i"), Variable("j") % 4), False),
    ],
)
def test_unit_stride(indices: tuple[Any, ...], expected: bool) -> None:
    assert cache_hints.unit_stride(indices, "j") is expected


def test_the_first_loop_of_a_row_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hinted(softmax(8, 64), monkeypatch)
    [section] = kernel.phases[0].sections
    loops = [s for s in statements(section.body) if getattr(s, "variable", "") in ("j", "k", "m")]
    counts = [sum(isinstance(s, Prefetch) for s in loop.body) for loop in loops]  # type: ignore[union-attr]
    assert counts[0] == 0 and sum(counts) == 1
