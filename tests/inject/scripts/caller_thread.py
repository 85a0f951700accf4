"""Functions whose steps are placed in the caller's thread, and the same ones in TensorFlow's pool,
where they are placed or their gates allow nothing else: what each does, as JSON. Argument: the
folder of the native plug-in."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context

from stitchcore.inject import plugin, step_parts
from stitchcore.inject.caller_thread import KERNEL, LABEL

major, minor = (int(part) for part in tf.__version__.split(".")[:2])
native = plugin.load(sys.argv[1], (major, minor))
CALLS = "TFE_Py_ExecuteCancelable", "SessionRun"
EXECUTOR = native.caller_thread_executor()
Body = Callable[..., Any]


def gate(where: str) -> Any:
    """The gate of a new step that runs "here", or in the pool: "placed" there, or allowed nothing
    else."""
    step = native.new_step()
    native.place(step, plugin.POOL if where == "placed" else plugin.CALLER_THREAD)
    numbers = {"step": attr_value_pb2.AttrValue(i=step), "arm": attr_value_pb2.AttrValue(i=1)}
    allows = {"caller_thread": attr_value_pb2.AttrValue(b=where != "pool")}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op("StitchGate", [], [], name="gate", attrs={**numbers, **allows})


def placed(body: Body, where: str) -> Body:
    """`body` as a function whose step runs there."""

    def gated(*arguments: Any) -> Any:
        with tf.control_dependencies([gate(where)]):
            return body(*map(tf.identity, arguments))

    function = tf.function(gated)

    def call(*arguments: Any) -> Any:
        with context.function_executor_type(EXECUTOR):
            return function(*arguments)

    return call


def threads(call: Callable[[], Any]) -> list[str]:
    """In whose threads a call's operations ran: the caller's, the pool's, others. Of operations
    that it has found to be cheap TensorFlow records nothing."""
    call()
    native.start_trace()
    call()
    text = native.stop_trace()
    events, _ = step_parts.parsed(text)
    names = [line[1:] for line in text.split("\n") if line.startswith("\t")]
    callers = {event.thread for event in events if event.name.startswith(CALLS)}
    ran = {event.thread for event in events if event.name.endswith(":Tanh")}
    return sorted(name_of(names[one - 1], one in callers) for one in ran)


def name_of(thread: str, calls: bool) -> str:
    return "caller's" if calls else "pool's" if thread.startswith("tf_Compute") else thread


def tanh(x: Any) -> Any:
    return tf.tanh(x)


def tiny(x: Any) -> Any:
    """A product below the least normal number, which TensorFlow's threads flush to zero."""
    return x * tf.constant(1e-30)


def calls_many(x: Any) -> Any:
    """Calls that TensorFlow does not put into the step, each of which could end elsewhere."""

    @tf.function(experimental_attributes={"_noinline": True})
    def one(value: Any) -> Any:
        return tf.tanh(value)

    for _ in range(3000):
        x = one(x)
    return x


def loop(x: Any) -> Any:
    """A loop that stays one operation, which calls its body."""
    options = tf.raw_ops.While
    body = tf.function(lambda i, value: (i + 1, tf.tanh(value)))
    condition = tf.function(lambda i, value: i < 20000)
    specs = tf.TensorSpec((), tf.int32), tf.TensorSpec(x.shape, tf.float32)
    return options(
        input=(tf.constant(0), x),
        cond=condition.get_concrete_function(*specs),
        body=body.get_concrete_function(*specs),
    )[1]


def fails(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(x, 1.0)]):
        return tf.tanh(x)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except tf.errors.InvalidArgumentError as error:
        return type(error).__name__
    return ""


def in_thread(call: Callable[[], Any], stack: int) -> Any:
    """What `call` gives in a thread with so many bytes of stack."""
    found = []
    before = threading.stack_size(stack)
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    threading.stack_size(before)
    thread.join()
    return found[0]


def at_once(call: Callable[[Any], Any]) -> bool:
    """Whether eight threads that call it again and again each get their own result."""
    right: list[bool] = []

    def again(number: int) -> None:
        x = tf.fill((64,), number / 10)
        expected = np.tanh(np.full(64, np.float32(number / 10)))
        right.append(all(np.allclose(call(x), expected) for _ in range(200)))

    threads = [threading.Thread(target=again, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return right == [True] * 8


def pipeline(where: str, parallel: bool, labelled: bool) -> dict[str, Any]:
    """An iterator that is begun in a call and read to its end in later ones, whose functions run in
    parallel, and keep the runner of the first, or ask Python in whose thread they are."""
    asked, zeros = set(), tf.zeros((1 << 17,))

    def ask(number: Any) -> Any:
        asked.add(threading.current_thread() is threading.main_thread())
        return number

    data = tf.data.Dataset.range(300)
    if parallel:
        data = data.map(lambda n: n * 2, num_parallel_calls=4).prefetch(2)
    else:
        data = data.map(lambda n: tf.numpy_function(ask, [n * 2], tf.int64))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        data = data.with_options(options)
    name = f"iterator of {where}, {parallel}, {labelled}"
    resource = tf.raw_ops.IteratorV2(
        shared_name=name, container="", output_types=[tf.int64], output_shapes=[()]
    )

    def begin(x: Any) -> Any:
        tf.raw_ops.MakeIterator(dataset=data._variant_tensor, iterator=resource)
        return tf.tanh(x)

    def following(x: Any) -> Any:
        [one] = tf.raw_ops.IteratorGetNext(
            iterator=resource, output_types=[tf.int64], output_shapes=[()]
        )
        if labelled:
            one.op._set_attr(KERNEL, attr_value_pb2.AttrValue(s=LABEL))
        zeros = tf.tanh(x * tf.cast(one, tf.float32))
        return one + tf.cast(tf.reduce_sum(zeros), tf.int64)

    placed(begin, where)(zeros)
    read = placed(following, where)
    elements, ended = [], ""
    found: list[str] = []
    while not ended:
        try:
            elements.append(int(read(zeros)))
            if len(elements) == 3:
                found = threads(lambda: elements.append(int(read(zeros))))
        except tf.errors.OutOfRangeError as error:
            ended = type(error).__name__
    return {
        "elements": elements, "ended": ended, "asked_in_callers": sorted(asked),
        "threads": found,
    }  # fmt: skip


def session(where: str) -> dict[str, Any]:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (64,))
        with tf.control_dependencies([gate(where)]):
            y, product = tf.tanh(x), tiny(x)
        config = tf.compat.v1.ConfigProto()
        config.experimental.executor_type = EXECUTOR
        with tf.compat.v1.Session(config=config) as one:
            found = threads(lambda: one.run(y, {x: np.zeros(64, np.float32)}))
            small = one.run(product, {x: np.full(64, 1e-10, np.float32)})
    return {"threads": found, "tiny": float(small.max())}


x = tf.linspace(-1.0, 0.9, 64)
small = tf.constant([1e-10], tf.float32)
found: dict[str, dict[str, Any]] = {}
for where in ("here", "placed", "pool"):
    function = placed(tanh, where)
    refused = placed(fails, where)
    found[where] = {
        "threads": threads(lambda: function(x)),  # noqa: B023
        "tiny": [float(one) for one in placed(tiny, where)(small)],
        "many": placed(calls_many, where)(x).numpy().tolist(),
        "loop": placed(loop, where)(x).numpy().tolist(),
        "error": error_of(lambda: refused(x + 1.0)),  # noqa: B023
        "after_error": refused(x).numpy().tolist(),
        "small_stack": in_thread(lambda: threads(lambda: function(x)), 1 << 20),  # noqa: B023
        "large_stack": in_thread(lambda: threads(lambda: function(x)), 1 << 23),  # noqa: B023
        "at_once": at_once(function),
        "session": session(where),
        "parallel": pipeline(where, parallel=True, labelled=where != "pool"),
        "python": pipeline(where, parallel=False, labelled=where != "pool"),
        "unlabelled": pipeline(where, parallel=True, labelled=False),
    }
print(json.dumps(found))
