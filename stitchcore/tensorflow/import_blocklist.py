"""Libraries that TensorFlow imports where they are installed, and that no worker uses.

Keras looks for jax and pandas, and jax for matplotlib: a third of the time that `import tensorflow`
takes, in each process that compiles one step. They may be there where a user runs `stitch run` in
the environment that he works in; the worker's image has none of them. TensorFlow is as it is
without them.
"""

from __future__ import annotations

import sys

NAMES = ("jax", "matplotlib", "pandas")


def leave_out() -> None:
    """From now on this process cannot import NAMES. For the start of a process that is ours alone:
    a program that calls the compiler may need them."""
    for name in NAMES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # import raises ImportError
