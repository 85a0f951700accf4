"""Names that gateway and workers must agree on: the task, its queues, how those are declared.

A queue holds the requests of one target and one TensorFlow minor version, because a region is
proved and timed on the processor and by the TensorFlow it is made for.
"""

from __future__ import annotations

import re
from typing import Any

TASK = "stitch.compile"
"""One argument: the request's key. What it stands for lies in the store."""
QUEUE = re.compile(r"stitch\.([a-z][a-z0-9_-]{0,63})\.tf(2\.[0-9]{1,3})")
BROKERS = ("redis", "rediss", "redis+socket", "amqp", "amqps")


def queue_name(target: str, tf: str) -> str:
    """The queue of a target ("cpu-x86-64-v4") and a TensorFlow version ("2.21" or "2.21.0").

    Raises ValueError for anything that is not a version of TensorFlow 2.
    """
    major, _, rest = tf.partition(".")
    minor = rest.partition(".")[0]
    if major != "2" or not minor.isdigit():
        raise ValueError(f"{tf!r} is no version of TensorFlow 2")
    return f"stitch.{target}.tf2.{minor}"


def queue_parts(name: str) -> tuple[str, str]:
    """Target and TensorFlow's minor version ("2.21") of a queue. Raises ValueError for a name of
    none."""
    found = QUEUE.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no queue's name")
    return found[1], found[2]


def check_broker(url: str) -> None:
    """Raises ValueError for a URL of no broker that queues are kept in; without its password."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in BROKERS:
        raise ValueError(f"{scheme if separator else 'it'} is none of {', '.join(BROKERS)}")


def queue_arguments(broker: str) -> dict[str, Any]:
    """How a queue is declared at a broker URL: on RabbitMQ replicated (quorum) queues, which count
    deliveries; both sides must declare the same or the broker refuses."""
    return {"x-queue-type": "quorum"} if broker.startswith(("amqp://", "amqps://")) else {}
