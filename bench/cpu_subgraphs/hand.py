"""The hand-written kernels as programs: which kernels, in which order, on which buffers."""

from __future__ import annotations

import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from bench.program import Launch, Program, Value

KERNELS = Path(__file__).resolve().parent / "kernels"
FLAGS = (
    "-std=gnu11", "-O3", "-march=native", "-mprefer-vector-width=512", "-fPIC", "-shared",
    "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-fassociative-math", "-freciprocal-math", "-ffp-contract=fast",
)  # fmt: skip
"""As in the prototypes: a hand may use what the generator must not (contraction, reassociation)."""

Shape = tuple[int, ...]


@lru_cache(maxsize=16)
def library(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{name}.so"
        command = ["gcc", *FLAGS, str(KERNELS / f"{name}.c"), "-o", str(target), "-lm"]
        subprocess.run(command, check=True)
        return target.read_bytes()


def floats(shape: Shape, *names: str) -> tuple[Value, ...]:
    return tuple(Value(name, "float32", shape) for name in names)


def layer_norm() -> Program:
    rows, columns = 4096, 768
    data = library("layer_norm")
    x, gamma, beta, dy = (
        *floats((rows, columns), "x"), *floats((columns,), "gamma", "beta"),
        *floats((rows, columns), "dy"),
    )  # fmt: skip
    forward = Launch(
        "layer_norm_forward", data, ("x", "gamma", "beta"),
        floats((rows, columns), "y") + floats((rows,), "mean", "deviation"), (16,), 0, 2_500_000,
    )  # fmt: skip
    backward = Launch(
        "layer_norm_backward", data, ("x", "gamma", "dy", "mean", "deviation"),
        floats((rows, columns), "dx") + floats((columns,), "dgamma", "dbeta"),
        (16, 1), 16 * 2 * columns * 4, 3_500_000,
    )  # fmt: skip
    return Program((x, gamma, beta, dy), (forward, backward), ("y", "dx", "dgamma", "dbeta"))


def gelu_chain() -> Program:
    rows, columns = 4096, 768
    data, large = library("gelu_chain"), (rows, columns)
    h, residual, dy = floats(large, "h", "residual", "dy")
    bias, gamma, beta = floats((columns,), "bias", "gamma", "beta")
    mask = Value("mask", "uint8", large)
    forward = Launch(
        "gelu_chain_forward", data, ("h", "bias", "mask", "residual", "gamma", "beta"),
        floats(large, "y") + floats((rows,), "mean", "deviation"), (16,), 0, 6_000_000,
    )  # fmt: skip
    gradients = (
        *floats(large, "dh"), *floats((columns,), "dbias"), *floats(large, "dresidual"),
        *floats((columns,), "dgamma", "dbeta"),
    )  # fmt: skip
    inputs = ("h", "bias", "mask", "residual", "gamma", "dy", "mean", "deviation")
    backward = Launch(
        "gelu_chain_backward", data, inputs, gradients, (16, 1), 16 * 3 * columns * 4, 8_000_000
    )
    results = ("y", "dh", "dbias", "dresidual", "dgamma", "dbeta")
    return Program((h, bias, mask, residual, gamma, beta, dy), (forward, backward), results)


def softmax() -> Program:
    shape = (8, 12, 256, 256)
    data = library("softmax")
    x, dp = floats(shape, "x", "dp")
    (mask,) = floats((8, 256), "mask")
    forward = Launch(
        "softmax_forward", data, ("x", "mask"), floats(shape, "p"), (96,), 0, 6_000_000
    )
    backward = Launch(
        "softmax_backward", data, ("p", "dp"), floats(shape, "dx"), (96,), 0, 6_000_000
    )
    return Program((x, mask, dp), (forward, backward), ("p", "dx"))


def adam() -> Program:
    sizes = [768] * 50 + [499_200] * 50

    def values(kind: str) -> tuple[Value, ...]:
        return tuple(Value(f"{kind}{i:02d}", "float32", (n,)) for i, n in enumerate(sizes))

    state = values("p") + values("m") + values("v")
    inputs = (*state, *values("g"), Value("rate", "float32", ()))
    outputs = values("new_p") + values("new_m") + values("new_v")
    forwards = tuple((i, i) for i in range(300))
    names = tuple(value.name for value in inputs)
    launch = Launch("adam", library("adam"), names, outputs, (401,), 0, 70_000_000, forwards)
    updates = tuple((a.name, b.name) for a, b in zip(state, outputs, strict=True))
    return Program(inputs, (launch,), tuple(value.name for value in outputs), updates)


def batch_norm() -> Program:
    shape, channels = (32, 56, 56, 64), 64
    data, scratch = library("batch_norm"), 32 * 2 * channels * 4
    x, dy = floats(shape, "x", "dy")
    gamma, beta = floats((channels,), "gamma", "beta")
    forward = Launch(
        "batch_norm_forward", data, ("x", "gamma", "beta"),
        floats(shape, "y") + floats((channels,), "mean", "deviation", "variance"),
        (32, 32), scratch, 6_000_000,
    )  # fmt: skip
    backward = Launch(
        "batch_norm_backward", data, ("x", "gamma", "beta", "dy", "mean", "deviation"),
        floats(shape, "dx") + floats((channels,), "dgamma", "dbeta"), (32, 32), scratch, 9_000_000,
    )  # fmt: skip
    return Program((x, gamma, beta, dy), (forward, backward), ("y", "dx", "dgamma", "dbeta"))


def cross_entropy() -> Program:
    rows, classes = 2048, 8192
    (logits,) = floats((rows, classes), "logits")
    labels = Value("labels", "int64", (rows,))
    outputs = floats((rows,), "losses") + floats((rows, classes), "dlogits")
    launch = Launch(
        "cross_entropy", library("cross_entropy"), ("logits", "labels"), outputs, (64,), 0,
        16_000_000,
    )  # fmt: skip
    return Program((logits, labels), (launch,), ("losses", "dlogits"))


def lstm_cell() -> Program:
    rows, hidden = 256, 512
    data = library("lstm_cell")
    (gates,) = floats((rows, 4 * hidden), "gates")
    c, dh, dnext = floats((rows, hidden), "c", "dh", "dnext")
    forward = Launch(
        "lstm_cell_forward", data, ("gates", "c"), floats((rows, hidden), "next_c", "h"), (16,), 0,
        300_000,
    )  # fmt: skip
    backward = Launch(
        "lstm_cell_backward", data, ("gates", "c", "dh", "dnext"),
        floats((rows, 4 * hidden), "dgates") + floats((rows, hidden), "dc"), (16,), 0, 600_000,
    )  # fmt: skip
    return Program((gates, c, dh, dnext), (forward, backward), ("next_c", "h", "dgates", "dc"))


def dien_chain() -> Program:
    steps, rows, columns = 24, 128, 36
    (x,) = floats((steps, 3, rows, columns), "x")
    (attention,) = floats((steps, rows, 1), "attention")
    update, reset = floats((columns,), "update", "reset")
    h0, h = floats((rows, columns), "h0", "h")
    names = ("x", "attention", "update", "reset", "h0")
    launch = Launch("dien_chain", library("dien_chain"), names, (h,), (32,), 0, 150_000)
    return Program((x, attention, update, reset, h0), (launch,), ("h",))


PROGRAMS = {
    program.__name__: program
    for program in (
        layer_norm,
        gelu_chain,
        softmax,
        adam,
        batch_norm,
        cross_entropy,
        lstm_cell,
        dien_chain,
    )
}
