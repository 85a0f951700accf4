"""Makes TensorFlow instantiate a step a second time, and choose between the two at each call.

Functions: the options of the call carry a ConfigProto; a marker in it (an optimizer name that
nobody knows, which the meta optimizer ignores) gives another kernel-cache key, so both
instantiations stay cached and no retrace happens. Sessions: executors are cached by feeds, fetches
and targets; repeating a target gives another one. A mark is a number: 0 is the ordinary
instantiation, and each other number one of its own.

A function that calls others which TensorFlow would keep apart from it is called as a copy that has
them in it (inlining.py), by the name of the original everywhere else.

A call that fails before it has done anything (TensorFlow does not take a graph of ours) is made
again as the job's own: the user's program sees nothing of it.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Callable, Dict, Hashable, NamedTuple, Optional, Protocol, Set, Tuple

from . import inlining

MARKER = "stitch"


class Chooser(Protocol):
    """What decides about calls. Should one of these raise, the call goes on without it."""

    def choose(self, caller: Hashable) -> Tuple[int, Any]:
        """(the call's mark, what to call)."""

    unconfirmed: Set[Hashable]
    """Callers of which a graph of ours has been handed to TensorFlow and not been seen to run."""

    timed: Set[Hashable]
    """Callers whose calls are timed here."""

    def begin(self, caller: Hashable) -> None:
        """A call of one of them begins."""

    def took(self, caller: Hashable, mark: int, lifted: bool, nanoseconds: int) -> None:
        """A call of one of them has ended well."""

    followed: Set[Hashable]
    """Callers of which some calls are recorded (step_recorder.py)."""

    def begin_followed(self, caller: Hashable, mark: int, lifted: bool) -> None:
        """A call of one of them begins."""

    def end_followed(self, caller: Hashable, mark: int, lifted: bool, nanoseconds: int) -> None:
        """A call of one of them has ended, well or not."""

    def confirm(self, caller: Hashable, mark: int, lifted: bool) -> None:
        """A call of one of them has ended well."""

    def recover(self, caller: Hashable, mark: int, lifted: bool) -> bool:
        """Told that a call has raised an error. True: it has done nothing, make it again."""

    def recovered(self, caller: Hashable, error: Exception) -> None:
        """A call that was made again has ended well, which had failed with `error`."""

    def after_first_call(self, context: Any, name: bytes, inputs: Any) -> None:
        """A function has run once."""


class Call(NamedTuple):
    """A call under way. `arity` counts a function's arguments and results; None for a session.
    `ours`: it names the executor that may run its graph in this thread (native/caller_thread.cc).
    """

    key: Hashable
    mark: int
    arity: Optional[Tuple[int, int]]
    ours: bool


class Caller(threading.local):
    """Who is calling in this thread, for the graphs that Grappler shows."""

    now: Optional[Call] = None
    shown: Any = None  # the program of the graph that Grappler shows
    probing: Any = None  # the Program whose compiled bodies are being shown to Grappler
    graphs: int = 0  # that Grappler has shown in this thread


def _or_default(question: Callable[..., Any], otherwise: Any, *about: Any) -> Any:
    try:
        return question(*about)
    except Exception:
        return otherwise


def _call(
    caller: Caller,
    key: Hashable,
    arity: Optional[Tuple[int, int]],
    ours: bool,
    chooser: Chooser,
    run: Callable[[int, Any], Any],
) -> Any:
    """`run` (mark, what to call) as `chooser` decides, again where the first has not begun."""
    failed: Optional[Exception] = None
    while True:
        mark, called = _or_default(chooser.choose, (0, key), key)
        caller.now = Call(key, mark, arity, ours)
        again = False
        if key in chooser.timed:
            _or_default(chooser.begin, None, key)
        followed = key in chooser.followed
        if followed:
            _or_default(chooser.begin_followed, None, key, mark, called != key)
        start = time.perf_counter_ns()
        try:
            result = run(mark, called)
        except Exception as error:
            again = _or_default(chooser.recover, False, key, mark, called != key)
            if not again:
                raise
            failed = error
        finally:
            elapsed = time.perf_counter_ns() - start
            caller.now = None
            if followed:
                _or_default(chooser.end_followed, None, key, mark, called != key, elapsed)
        if not again:
            if key in chooser.timed:
                _or_default(chooser.took, None, key, mark, called != key, elapsed)
            if key in chooser.unconfirmed:
                _or_default(chooser.confirm, None, key, mark, called != key)
            if failed is not None:
                _or_default(chooser.recovered, None, key, failed)
            return result


def _options(options: Any, mark: int, executor: str) -> Any:
    """A copy of FunctionCallOptions with the marker of `mark`, and `executor` where the job has
    chosen none."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    config = config_pb2.ConfigProto()
    config.ParseFromString(options.config_proto_serialized)
    if mark:
        config.graph_options.rewrite_options.custom_optimizers.add().name = f"{MARKER}{mark}"
    chosen = options.executor_type or executor
    return context.FunctionCallOptions(config_proto=config, executor_type=chosen)


def _alone(context: Any) -> bool:
    """Whether no other process runs parts of this one's functions: it may not know an executor."""
    servers = ("_server_def", "_collective_ops_server_def")
    return all(getattr(context, name, None) is None for name in servers)


def install_functions(caller: Caller, chooser: Chooser, inlines: bool, executor: str) -> None:
    """Wraps the one method through which every eager call of a tf.function passes; `inlines` those
    that TensorFlow keeps apart, and names `executor` ("": TensorFlow's) to run them."""
    from tensorflow.python.eager import context

    original = context.Context.call_function
    made: Dict[Tuple[Any, Any, int, str], Any] = {}  # threads have options of their own, alike
    visited: Set[bytes] = set()
    copies = inlining.Copies()
    taken: Set[bytes] = set()  # copies that TensorFlow has instantiated

    def call_inlined(context: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        copy = _or_default(copies.of, None, context, name) if inlines else None
        if copy is None:
            return original(context, name, tensor_inputs, num_outputs)
        shown = caller.graphs
        try:
            outputs = original(context, copy, tensor_inputs, num_outputs)
        except Exception:
            if name in taken or caller.graphs != shown:
                taken.add(name)
                raise  # the job's own error
        else:
            taken.add(name)
            return outputs
        copies.drop(name)  # TensorFlow does not take it: it has not come as far as Grappler
        return original(context, name, tensor_inputs, num_outputs)

    def call_function(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        if caller.probing is not None:
            return original(self, name, tensor_inputs, num_outputs)

        options = self.function_call_options
        named = executor if not options.executor_type and _alone(self) else ""

        def run(mark: int, called: Any) -> Any:
            call = call_inlined if called == name else original
            if not mark and not named:
                return call(self, called, tensor_inputs, num_outputs)
            key = options.config_proto_serialized, options.executor_type, mark, named
            if key not in made:
                made[key] = _or_default(_options, options, options, mark, named)
            self.function_call_options = made[key]
            try:
                return call(self, called, tensor_inputs, num_outputs)
            finally:
                self.function_call_options = options

        arity = len(tensor_inputs), num_outputs
        outputs = _call(caller, name, arity, bool(named), chooser, run)
        if name not in visited:
            visited.add(name)
            _or_default(chooser.after_first_call, None, self, name, tensor_inputs)
        return outputs

    context.Context.call_function = call_function


def _naming(config: Any, executor: str) -> Any:
    """A copy of a session's ConfigProto, of the process's where there is none, that names
    `executor`."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    named = config_pb2.ConfigProto()
    named.CopyFrom(context.context().config if config is None else config)
    named.experimental.executor_type = named.experimental.executor_type or executor
    return named


def install_sessions(caller: Caller, chooser: Chooser, executor: str) -> None:
    """Wraps Session.run's last Python step, and has sessions of this process name `executor` ("":
    TensorFlow's) to run their graphs."""
    from tensorflow.python.client import session

    original, construct = session.BaseSession._do_run, session.BaseSession.__init__

    @functools.wraps(construct)
    def __init__(self, target="", graph=None, config=None):  # type: ignore[no-untyped-def]
        if executor and not target:
            config = _or_default(_naming, config, config, executor)
        construct(self, target, graph, config)

    def _do_run(  # type: ignore[no-untyped-def]
        self, handle, target_list, fetch_list, feed_dict, options, run_metadata
    ):
        operations = [*target_list, *fetch_list]
        if handle is not None or not operations:
            return original(self, handle, target_list, fetch_list, feed_dict, options, run_metadata)

        def run(mark: int, called: Any) -> Any:
            first = target_list[0] if target_list else getattr(operations[0], "op", operations[0])
            targets = [*target_list, *[first] * mark]
            return original(self, handle, targets, fetch_list, feed_dict, options, run_metadata)

        # keyed by references, which hash as their tensors do
        key = (id(self), tuple(map(id, operations)), frozenset(map(hash, feed_dict)))
        ours = bool(executor) and self._config.experimental.executor_type == executor
        return _call(caller, key, None, ours, chooser, run)

    session.BaseSession._do_run = _do_run
    session.BaseSession.__init__ = __init__
