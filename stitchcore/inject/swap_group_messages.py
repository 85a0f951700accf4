"""What this process says to its swap groups: the latest word of each, and the answer to it.

The job's threads put words in and take answers out; the gateway's thread does the talking. A word
is said again and again, because a group moves on only while its members speak.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from . import swap_group

Fields = Mapping[str, Any]


@dataclass
class Word:
    """`fields` of an event `acknowledged`, said every so many seconds; `due` by the monotonic
    clock, 0: at once."""

    fields: Fields
    every: float
    due: float = 0.0
    heard: Optional[swap_group.Heard] = None


class Words:
    """Of all groups of a process. Any thread."""

    def __init__(self) -> None:
        self._words: Dict[str, Word] = {}
        self._lock = threading.Lock()

    def put(self, fields: Fields, every: float) -> bool:
        """Replaces the group's word; True when it must be said at once: it says something new."""
        name = str(fields["group"])
        with self._lock:
            known = self._words.get(name)
            if known is None or known.fields["round"] != fields["round"]:
                self._words[name] = Word(fields, every)
                return True
            new = known.fields.get("confirm") != fields.get("confirm")
            known.fields, known.every = fields, every
            if new:
                known.due = 0.0
            return new

    def end(self, name: str) -> None:
        """Nothing is said to this group any more."""
        with self._lock:
            self._words.pop(name, None)

    def heard(self, name: str) -> Optional[swap_group.Heard]:
        """The answer to the present round's words, once there is one."""
        with self._lock:
            known = self._words.get(name)
            return known.heard if known is not None else None

    def due(self) -> Optional[float]:
        """When the next word is to be said."""
        with self._lock:
            return min((word.due for word in self._words.values()), default=None)

    def first(self, now: float) -> Optional[Tuple[str, Fields]]:
        """A word that is due; its next turn is set before it is said."""
        with self._lock:
            for name, word in self._words.items():
                if word.due <= now:
                    word.due = now + word.every
                    return name, word.fields
        return None

    def answered(self, name: str, fields: Fields, answer: Mapping[str, Any]) -> None:
        """Takes in the answer to `fields`, unless the group is in another round by now."""
        with self._lock:
            word = self._words.get(name)
            if word is not None and word.fields["round"] == fields["round"]:
                word.heard = swap_group.heard_of(int(fields["round"]), answer)

    def later(self, name: str, due: float) -> None:
        with self._lock:
            if name in self._words:
                self._words[name].due = due
