"""What this process says to its swap groups: the latest message to each, and the answer to it.

The job's threads put messages in and take answers out; the gateway's thread does the talking. A
message is sent again and again, because a group moves on only while its members speak.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from . import swap_group

Fields = Mapping[str, Any]


@dataclass
class Message:
    """`fields` of an event `acknowledged`, sent every so many seconds; `due` by the monotonic
    clock, 0: at once."""

    fields: Fields
    every: float
    due: float = 0.0
    heard: Optional[swap_group.Heard] = None


class Messages:
    """Of all groups of a process. Any thread."""

    def __init__(self) -> None:
        self._messages: Dict[str, Message] = {}
        self._lock = threading.Lock()

    def put(self, fields: Fields, every: float) -> bool:
        """Replaces the group's message; True when it says something new: it is sent at once."""
        name = str(fields["group"])
        with self._lock:
            known = self._messages.get(name)
            if known is None or known.fields["round"] != fields["round"]:
                self._messages[name] = Message(fields, every)
                return True
            new = known.fields.get("confirm") != fields.get("confirm")
            known.fields, known.every = fields, every
            if new:
                known.due = 0.0
            return new

    def end(self, name: str) -> None:
        """Nothing is said to this group any more."""
        with self._lock:
            self._messages.pop(name, None)

    def heard(self, name: str) -> Optional[swap_group.Heard]:
        """The answer to the present round's messages, once there is one."""
        with self._lock:
            known = self._messages.get(name)
            return known.heard if known is not None else None

    def due(self) -> Optional[float]:
        """When the next message is to be sent."""
        with self._lock:
            return min((message.due for message in self._messages.values()), default=None)

    def first(self, now: float) -> Optional[Tuple[str, Fields]]:
        """A message that is due; its next turn is set before it is sent."""
        with self._lock:
            for name, message in self._messages.items():
                if message.due <= now:
                    message.due = now + message.every
                    return name, message.fields
        return None

    def answered(self, name: str, fields: Fields, answer: Mapping[str, Any]) -> None:
        """Takes in the answer to `fields`, unless the group is in another round by now."""
        with self._lock:
            message = self._messages.get(name)
            if message is not None and message.fields["round"] == fields["round"]:
                message.heard = swap_group.heard_of(int(fields["round"]), answer)

    def later(self, name: str, due: float) -> None:
        with self._lock:
            if name in self._messages:
                self._messages[name].due = due
