"""The coordination service that replicas share: TensorFlow's, as a key-value store written once.

MultiWorkerMirroredStrategy starts the service in its first replica, of TensorFlow 2.15 as of 2.21.
A key is inserted once and never changed, so the first to insert one decides for all; and when the
service is gone, so is the job. No value outlives the replicas' processes.
"""

from __future__ import annotations

from typing import Optional

READ_MILLISECONDS = 20


def joined() -> bool:
    """True when a strategy has made this process one of several that coordinate."""
    from tensorflow.python.eager import context

    return context.context().coordination_service is not None


def read(key: str) -> Optional[str]:
    """What stands under `key`; None when nothing does, or the service does not answer."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import errors

    try:
        return str(context.context().get_config_key_value(key, READ_MILLISECONDS))
    except errors.OpError:
        return None


def decide(key: str, value: str) -> Optional[str]:
    """Writes `value` unless something stands there already; what then stands, None if unknown."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import errors

    try:
        context.context().set_config_key_value(key, value)
    except errors.OpError:
        return read(key)  # it stood there, or the answer to its writing was lost
    return value
