"""What a call of a graph costs in TensorFlow's pool, and in the thread that makes it:
`python -m bench.caller_thread [--rounds N]`.

Functions of the sizes that small steps have, each twice in one process: a gate allows the caller's
thread (inject/caller_thread.py), or does not. Blocks of calls of both take turns; a figure
is the median over blocks, of wall time, processor time and voluntary context switches of a call;
the ratio has its 95 % bootstrap interval. Writes bench/results/caller_thread.md.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import record
from stitchcore.inject import build, caller_thread, plugin
from stitchcore.verify.timing import paired_ratio

CALLS = 50
"""Of a block."""

Figures = tuple[float, float, float]
"""Of a call: seconds, processor seconds, voluntary context switches."""


def steps(tf: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """By name: the body of a function, and its arguments."""
    layers = [tf.Variable(tf.random.stateless_normal([64, 64], [1, n]) / 8) for n in range(8)]
    numbers = iter(tf.data.Dataset.range(1).repeat().prefetch(8))

    def few(x: Any) -> Any:
        return tf.tanh(tf.exp(x) @ x)

    def training(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = x
            for layer in layers:
                value = tf.tanh(value @ layer)
            loss = tf.reduce_mean(value * value)
        for layer, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            layer.assign_sub(0.01 * gradient)
        return loss

    def with_input(x: Any) -> Any:
        return few(x + tf.cast(next(numbers), tf.float32))

    def branches(x: Any) -> Any:
        parts = [x + float(n) for n in range(4)]
        for layer in layers:
            parts = [tf.tanh(part @ layer) for part in parts]
        return tf.add_n(parts)

    small, rows = tf.ones((32, 32)) / 100, tf.ones((32, 64)) / 100
    return {
        "three operations": (few, (small,)),
        "three operations and the next element of an input": (with_input, (small,)),
        "a training step of eight layers of 64": (training, (rows,)),
        "four branches of eight layers, 512 rows": (branches, (tf.ones((512, 64)) / 100,)),
    }


def placed(
    tf: Any, body: Callable[..., Any], native: plugin.Plugin, here: bool
) -> Callable[..., Any]:
    """`body` as a function that runs in the caller's thread, or in the pool."""
    from tensorflow.core.framework import attr_value_pb2 as attributes
    from tensorflow.python.eager import context

    step, executor = native.new_step(), native.caller_thread_executor()
    native.place(step, plugin.CALLER_THREAD)

    def gated(*arguments: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        number, zero = attributes.AttrValue(i=step), attributes.AttrValue(i=0)
        attrs = {"step": number, "arm": zero, "caller_thread": attributes.AttrValue(b=here)}
        with tf.control_dependencies([graph.create_op("StitchGate", [], [], attrs=attrs)]):
            result = body(*map(tf.identity, arguments))
        for operation in graph.get_operations():
            if here and operation.type in caller_thread.NEXT:
                label = attributes.AttrValue(s=caller_thread.LABEL)
                operation._set_attr(caller_thread.KERNEL, label)
        return result

    function = tf.function(gated)

    def call(*arguments: Any) -> Any:
        with context.function_executor_type(executor):
            return function(*arguments)

    return call


def block(call: Callable[[], Any]) -> Figures:
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds / CALLS, processor / CALLS, (after.ru_nvcsw - before.ru_nvcsw) / CALLS


def row(name: str, pool: list[Figures], here: list[Figures]) -> str:
    found = paired_ratio([one[0] for one in pool], [one[0] for one in here])
    medians = [np.median(np.array(arm), axis=0) for arm in (pool, here)]
    cells = [f"{1e6 * m[0]:.0f} | {1e6 * m[1]:.0f} | {m[2]:.1f}" for m in medians]
    speedup = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return f"| {name} | {' | '.join(cells)} | {speedup} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.caller_thread", description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    import tensorflow as tf

    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    native = plugin.load(str(build.library_folder()), (version[0], version[1]))
    lines = [
        "| call of | pool us | its processor us | its switches | caller's thread us "
        "| its processor us | its switches | pool / caller's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (body, arguments) in steps(tf).items():
        calls = {here: placed(tf, body, native, here) for here in (False, True)}
        found: dict[bool, list[Figures]] = {here: [] for here in calls}
        for number in range(rounds + 1):
            for here, call in calls.items():
                figures = block(lambda: call(*arguments))  # noqa: B023
                found[here] += [figures] if number else []
        lines.append(row(name, found[False], found[True]))
    text = "\n".join([*lines, "", f"TensorFlow {tf.__version__}, blocks of {CALLS} calls in turn."])
    record.write_table(record.RESULTS / "caller_thread.md", text, "python -m bench.caller_thread")


if __name__ == "__main__":
    main()
