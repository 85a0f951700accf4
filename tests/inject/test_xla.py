"""Functions that XLA compiles, as they stand in TensorFlow's context before and after a lift."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="pip install 'stitchcore[tensorflow]' tensorflow-cpu")

from stitchcore.inject import reasons, xla  # noqa: E402


class Context:
    """TensorFlow's eager context, counting; the additions numbered in `refuses` fail."""

    def __init__(self, refuses: tuple[int, ...] = ()) -> None:
        from tensorflow.python.eager import context

        self.real = context.context()
        self.refuses = refuses
        self.additions = 0

    def add_function_def(self, definition: Any) -> None:
        self.additions += 1
        if self.additions - 1 in self.refuses:
            raise ValueError("refused")
        self.real.add_function_def(definition)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def references(context: Any, name: str) -> int:
    """How often the function must be removed until it is gone; it is registered again after."""
    definition, count = context.get_function_def(name), 0
    while context.has_function(name.encode()):
        context.remove_function(name.encode())
        count += 1
    for _ in range(count):
        context.add_function_def(definition)
    return count


@pytest.fixture
def registered() -> tuple[Any, Any]:
    """A function's definition, and one that differs; the first is registered twice."""

    @tf.function
    def double(x: Any) -> Any:
        return x + x

    function = double.get_concrete_function(tf.TensorSpec([2], tf.float32))
    definition = type(function.function_def)()
    definition.CopyFrom(function.function_def)
    definition.signature.name += "_test"
    context = Context().real
    context.add_function_def(definition)
    context.add_function_def(definition)
    new = type(definition)()
    new.CopyFrom(definition)
    new.attr["_noinline"].b = True
    return definition, new


def test_a_function_is_registered_anew(registered: tuple[Any, Any]) -> None:
    definition, new = registered
    name = definition.signature.name
    context = Context()
    xla.register_anew(context, definition, new)
    assert context.get_function_def(name).attr["_noinline"].b
    assert references(context, name) == 2


@pytest.mark.parametrize("refuses", [(0,), (1,)])
def test_the_old_function_comes_back(refuses: tuple[int, ...], registered: Any) -> None:
    definition, new = registered
    name = definition.signature.name
    context = Context(refuses)
    with pytest.raises(reasons.Refused) as caught:
        xla.register_anew(context, definition, new)
    assert caught.value.reason == reasons.XLA_NOT_LIFTED
    assert "_noinline" not in context.get_function_def(name).attr
    assert references(context.real, name) == 2
