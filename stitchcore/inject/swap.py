"""Makes TensorFlow instantiate a step a second time, and choose between the two at each call.

Functions: the options of the call carry a ConfigProto; a marker in it (an optimizer name that
nobody knows, which the meta optimizer ignores) gives another kernel-cache key, so both
instantiations stay cached and no retrace happens. Sessions: executors are cached by feeds, fetches
and targets; repeating a target gives another one.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Hashable, Optional, Set, Tuple

MARKER = "stitch"
Choose = Callable[[Hashable], Tuple[bool, Any]]  # caller -> (marked?, what to call instead)
After = Callable[[Any, bytes, Any], None]  # (context, function, inputs), after its first call
Failed = Callable[[Hashable, bool, bool, Exception], None]  # (caller, marked?, lifted?, error)


class Caller(threading.local):
    """Who is calling in this thread: (caller, marked), for the graphs that Grappler shows."""

    now: Optional[Tuple[Hashable, bool]] = None
    probing: Any = None  # the Program whose compiled bodies are being shown to Grappler


def _marked_options(options: Any) -> Any:
    """A copy of FunctionCallOptions with the marker."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    config = config_pb2.ConfigProto()
    config.ParseFromString(options.config_proto_serialized)
    config.graph_options.rewrite_options.custom_optimizers.add().name = MARKER
    return context.FunctionCallOptions(config_proto=config, executor_type=options.executor_type)


def install_functions(caller: Caller, choose: Choose, after: After, failed: Failed) -> None:
    """Wraps the one method through which every eager call of a tf.function passes."""
    from tensorflow.python.eager import context

    original = context.Context.call_function
    cache: Dict[int, Tuple[Any, Any]] = {}  # by id of the options, which are kept alive here
    visited: Set[bytes] = set()

    def call_function(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        if caller.probing is not None:
            return original(self, name, tensor_inputs, num_outputs)
        outputs = call(self, name, tensor_inputs, num_outputs)
        if name not in visited:
            visited.add(name)
            after(self, name, tensor_inputs)
        return outputs

    def call(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        marked, called = choose(name)
        caller.now = (name, marked)
        try:
            if not marked:
                return original(self, called, tensor_inputs, num_outputs)
            options = self.function_call_options
            entry = cache.get(id(options))
            if entry is None:
                entry = cache[id(options)] = (options, _marked_options(options))
            self.function_call_options = entry[1]
            try:
                return original(self, called, tensor_inputs, num_outputs)
            finally:
                self.function_call_options = options
        except Exception as error:
            failed(name, marked, called != name, error)
            raise
        finally:
            caller.now = None

    context.Context.call_function = call_function


def install_sessions(caller: Caller, choose: Choose, failed: Failed) -> None:
    """Wraps Session.run's last Python step."""
    from tensorflow.python.client import session

    original = session.BaseSession._do_run

    def _do_run(  # type: ignore[no-untyped-def]
        self, handle, target_list, fetch_list, feed_dict, options, run_metadata
    ):
        operations = [*target_list, *fetch_list]
        if handle is not None or not operations:
            return original(self, handle, target_list, fetch_list, feed_dict, options, run_metadata)
        key = (id(self), tuple(map(id, operations)), len(feed_dict))
        marked, _ = choose(key)
        caller.now = (key, marked)
        try:
            targets = list(target_list)
            if marked:
                last = operations[0]
                targets.append(targets[0] if targets else getattr(last, "op", last))
            return original(self, handle, targets, fetch_list, feed_dict, options, run_metadata)
        except Exception as error:
            failed(key, marked, False, error)
            raise
        finally:
            caller.now = None

    session.BaseSession._do_run = _do_run
