"""The GPUs that this process's TensorFlow can really have.

It takes all that it sees when it is first used, and where one cannot be had (another process holds
it alone: compute mode; all its memory is taken; the driver does not start) nothing of TensorFlow
works in the process, not on the processor either.
"""

from __future__ import annotations

import sys


def leave_out_unusable() -> None:
    """Begins TensorFlow's work in this process, without GPUs where it does not begin with them."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import config, errors_impl

    try:
        context.context().ensure_initialized()
    except (errors_impl.OpError, RuntimeError) as error:
        sys.stderr.write(f"stitch: no GPU here can be had: {error}\n")
        config.set_visible_devices([], "GPU")
        context.context().ensure_initialized()
