"""A program of the zoo with its own steps repeated, and nothing but their times kept.

    ZOO_OUT=FOLDER ZOO_STEPS=300 ZOO_LEAST=5 ZOO_SECONDS=30 python repeated.py PROGRAM

The program's file stays as it is, and so do its steps. As it is read, the outermost `for` loop that
has `watch.step` or a callback of `watch` in it goes over its values again, and `fit` over its
epochs, until there were so many steps in so many seconds at least, or the most seconds have passed
since the first one. What ends by itself (a `while`, an iterator that is used up, early stopping)
ends as it would. In place of the module `watch`, which keeps arrays, the program gets this one:
when each step ended goes to FOLDER/times, the processor seconds that the process had used by then
to FOLDER/processor, its peak of resident bytes to FOLDER/peak. The standard library only.
"""

import ast
import atexit
import os
import re
import sys
import time
import types

FOLDER = os.environ.get("ZOO_OUT")
STEPS = int(os.environ.get("ZOO_STEPS", "0"))
LEAST = float(os.environ.get("ZOO_LEAST", "0"))
SECONDS = float(os.environ.get("ZOO_SECONDS", "0"))
ENDLESS = 10**6
"""Epochs; the callback ends them."""
_process, _first, _count, _least_epochs = os.getpid(), None, 0, 0
_files = [
    os.open(os.path.join(FOLDER, name), os.O_CREAT | os.O_WRONLY, 0o644)
    for name in ("times", "processor")
    if FOLDER
]


# ---- what a program calls of `watch` -------------------------------------------------------------
def start(*watched):
    """Nothing is moved."""


def step(*watched, **fetched):
    """A step has ended."""
    global _first, _count
    if os.getpid() != _process:
        return
    now = time.perf_counter()
    _first = now if _first is None else _first
    _count += 1
    for file, seconds in zip(_files, (now, time.process_time()), strict=False):
        os.write(file, b"%.9f\n" % seconds)  # at once: a program may be killed


def callback(keras):
    """A callback of this Keras, 2 or 3, that calls `step` after each batch."""

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step()

        def on_test_batch_end(self, batch, logs=None):
            step()

        def on_predict_batch_end(self, batch, logs=None):
            step()

        def on_epoch_end(self, epoch, logs=None):
            if epoch + 1 >= _least_epochs and enough():
                self.model.stop_training = True

    return Watch()


# ---- what is put into a program ------------------------------------------------------------------
def enough():
    """Whether there were steps enough in time enough, or no time is left for more."""
    passed = 0.0 if _first is None else time.perf_counter() - _first
    return (_count >= STEPS and passed >= LEAST) or (_count > 0 and passed >= SECONDS)


def repeated(values):
    """`values` once, and again while there are too few steps and each round makes some."""
    while True:
        before = _count
        yield from values
        if enough() or _count == before or hasattr(values, "__next__"):
            return


def epochs(count):
    """How often `fit` may go over its data: `count` times at least."""
    global _least_epochs
    _least_epochs = count
    return count if enough() else ENDLESS


class Repeating(ast.NodeTransformer):
    """Puts `watch.repeated` and `watch.epochs` where they belong. `watching` are functions that
    call `watch.step`: a loop over one of them is a loop of steps."""

    def __init__(self, watching):
        self._watching = watching

    def visit_For(self, node):
        if _watches(node, self._watching):
            node.iter = _called("repeated", node.iter)
            return node
        return self.generic_visit(node)

    def visit_Call(self, node):
        self.generic_visit(node)
        names = {keyword.arg for keyword in node.keywords}
        for keyword in node.keywords:
            if keyword.arg == "epochs" and "callbacks" in names:
                keyword.value = _called("epochs", keyword.value)
        return node


def rewritten(text, name="program"):
    """The program's syntax tree with its steps repeated."""
    tree = ast.parse(text, name)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    watching = {function.name for function in functions if _watches(function, ())}
    return ast.fix_missing_locations(Repeating(watching).visit(tree))


def _watches(node, functions):
    def watches(part):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            return part.value.id == "watch" and part.attr in ("step", "callback")
        return isinstance(part, ast.Name) and part.id in functions

    return any(map(watches, ast.walk(node)))


def _called(name, argument):
    function = ast.Attribute(ast.Name("watch", ast.Load()), name, ast.Load())
    return ast.copy_location(ast.Call(function, [argument], []), argument)


def _tell_peak():
    if FOLDER and os.getpid() == _process:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            found = re.search(r"VmHWM:\s*(\d+) kB", status.read())
        with open(os.path.join(FOLDER, "peak"), "w", encoding="ascii") as file:
            file.write(str(int(found.group(1)) * 1024) if found else "0")


def main(path):
    """Runs the program as Python runs a script."""
    with open(path, encoding="utf-8") as file:
        tree = rewritten(file.read(), path)
    atexit.register(_tell_peak)
    sys.modules["watch"] = sys.modules["__main__"]
    program = types.ModuleType("__main__")
    program.__file__ = path
    sys.modules["__main__"] = program
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    exec(compile(tree, path, "exec"), program.__dict__)


if __name__ == "__main__":
    main(sys.argv[1])
