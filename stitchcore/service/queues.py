"""Names that gateway and workers must agree on: the task, its queues, how those are declared.

A queue holds the requests of one target and one TensorFlow minor version, because a region is
proved and timed on the processor and by the TensorFlow it is made for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TASK = "stitch.compile"
"""One argument: the request's key. What it stands for lies in the store."""
QUEUE = re.compile(r"stitch\.([a-z][a-z0-9_-]{0,63})\.tf(2\.[0-9]{1,3})")
BROKERS = ("redis", "rediss", "redis+socket", "sentinel", "amqp", "amqps")
SENTINEL = "sentinel://"
MASTER = "mymaster"
"""What a Redis is called among its Sentinels, where the URL's `?master=` does not say."""


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
    if scheme == "sentinel":
        sentinels(url)


@dataclass(frozen=True)
class Sentinels:
    """Who knows which Redis of a group is its master now. A URL of it is one for each Sentinel,
    with semicolons between: `sentinel://:password@host:26379;sentinel://host:26379/0?master=NAME`.
    The password is the Redis's; `&sentinel_password=` the Sentinels' own."""

    addresses: tuple[tuple[str, int], ...]
    master: str
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    own: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def transport(self) -> dict[str, Any]:
        """Celery's options for it."""
        return {"master_name": self.master, "sentinel_kwargs": self.own}


def sentinels(url: str) -> Sentinels:
    """Raises ValueError."""
    plain, _, query = url.partition("?")
    parts = [urlsplit(one) for one in plain.split(";")]
    if any(one.scheme != "sentinel" or not one.hostname for one in parts):
        raise ValueError("sentinel://host:port, with semicolons between them")
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    if not set(asked) <= {"master", "sentinel_password"}:
        raise ValueError("of a sentinel:// URL ?master= and ?sentinel_password= are known")
    own = asked.get("sentinel_password")
    user, password = (unquote(one or "") for one in (parts[0].username, parts[0].password))
    return Sentinels(
        addresses=tuple((one.hostname or "", one.port or 26379) for one in parts),
        master=asked.get("master", MASTER),
        database=int(parts[-1].path.strip("/") or 0),
        user=user or None,
        password=password or None,
        own={"password": own} if own else {},
    )


def for_celery(broker: str) -> tuple[str, dict[str, Any]]:
    """A broker's URL as Celery takes it, and the options that it takes beside it."""
    if not broker.startswith(SENTINEL):
        return broker, {}
    return broker.partition("?")[0], sentinels(broker).transport


def queue_arguments(broker: str) -> dict[str, Any]:
    """How a queue is declared at a broker URL: on RabbitMQ replicated (quorum) queues, which count
    deliveries; both sides must declare the same or the broker refuses."""
    return {"x-queue-type": "quorum"} if broker.startswith(("amqp://", "amqps://")) else {}
