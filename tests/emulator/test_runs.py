"""Runs of 16 bytes through quotients and remainders, as CUDA on the emulator: what is said to lie
side by side, at a multiple of its length, does, and inputs that nobody writes are read as such."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import Kernel, Load, Loop, LoopKind, Phase, Role, Section, Store
from tests.emulator import kernels
from tests.emulator.findings import Kind
from tests.emulator.program import compile_text
from tests.loop_ir.sample import device

HEADS, ROWS, WIDTH = 3, 16, 64
TOGETHER = 8
"""Rows of a task."""


def transposed() -> Kernel:
    """y[head, row] = x[row, head], rows of WIDTH, TOGETHER of them in one lane loop."""
    x = device("x", "f32", (ROWS * HEADS * WIDTH,), Role.INPUT)
    y = device("y", "f32", (HEADS * ROWS * WIDTH,), Role.OUTPUT)
    task, lane = Variable("task"), Variable("i")
    line = task * TOGETHER + lane // WIDTH
    source = line % ROWS * (HEADS * WIDTH) + line // ROWS * WIDTH + lane % WIDTH
    stored = Store(y, (task * (TOGETHER * WIDTH) + lane,), Load(x, (source,)))
    loop = Loop("i", 0, TOGETHER * WIDTH, LoopKind.LANES, (stored,))
    section = Section("task", HEADS * ROWS // TOGETHER, (loop,), elements_per_lane=4)
    return Kernel("transposed", (), (x, y), (Phase((section,)),))


def test_a_transpose_of_rows_moves_sixteen_bytes_a_lane() -> None:
    kernel = transposed()
    text = kernels.rendered([kernel])
    assert text.count("st_read_only(") == 1 and "*(st_run<float, 4> *)&y" in text
    x = np.random.default_rng(0).random((ROWS, HEADS, WIDTH), np.float32)
    made = kernels.run(kernel, compile_text(text), [x.reshape(-1)])
    assert not made.findings
    assert np.array_equal(made.outputs[0], x.transpose(1, 0, 2).reshape(-1))


def test_a_promise_that_is_broken_is_found() -> None:
    """The output lies where the input does, of which the text was told otherwise."""
    kernel = transposed()
    program = compile_text(kernels.rendered([kernel]))
    x = np.zeros(ROWS * HEADS * WIDTH, np.float32)
    shared = replace(kernel, aliases=((0, 0),))
    found = kernels.run(shared, program, [x], share_aliases=True).findings
    assert Kind.NOT_COHERENT in {one.kind for one in found}
