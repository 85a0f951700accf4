"""Who is next: weighted fair queueing of namespaces over the workers of one queue.

A broker's line is first come, first served, so one namespace's burst is everybody's wait. Here what
waits stays with the gateway, and a task goes to the broker when a worker is there to take it: of
the namespaces that wait the one that has been given least, by its weight. Who comes new is given
its share from now on, not what it has not asked for before. So a task waits for one that runs, and
not for another namespace's line. Within a namespace's own line those are first that a job waits
for; it can only say so of its own, so nobody gains on another namespace by saying it. In memory: a
request that was lost is asked for again.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Task = TypeVar("Task")


@dataclass
class Line(Generic[Task]):
    """Tasks by name (unique), of namespaces. `most` of one namespace run at a time (0: any);
    `weights` of namespaces are 1 where they are not named. Of equals the one is next whose turn
    was longest ago. `urgent` are names of tasks that a job waits for, in the order of asking."""

    most: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    waiting: dict[str, OrderedDict[str, Task]] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    given: dict[str, float] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    urgent: dict[str, OrderedDict[str, None]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return any(name in tasks for tasks in self.waiting.values())

    def add(self, namespace: str, name: str, task: Task) -> None:
        """A task waits; one that was running is begun anew."""
        self.running.pop(name, None)
        if name in self:
            return
        if not self.waiting.get(namespace):
            active = [self.given[one] for one in {*self.waiting, *self.running.values()}]
            least = min(active, default=max(self.given.values(), default=0.0))
            self.given[namespace] = max(self.given.get(namespace, 0.0), least)
        self.waiting.setdefault(namespace, OrderedDict())[name] = task

    def urge(self, name: str) -> None:
        """A job waits for a task, which goes before others of its namespace from now on."""
        namespace = next((one for one, tasks in self.waiting.items() if name in tasks), None)
        if namespace is not None:
            self.urgent.setdefault(namespace, OrderedDict())[name] = None

    def ahead(self, name: str, most: int) -> int:
        """How many tasks of its own namespace go before one, as far as `most`; 0 where it does not
        wait. Those of others come on top, as their turns are."""
        for namespace, tasks in self.waiting.items():
            if name in tasks:
                urgent = self.urgent.get(namespace, OrderedDict())
                rest = (one for one in tasks if one not in urgent)
                order = itertools.islice(itertools.chain(urgent, rest), most)
                return sum(1 for _ in itertools.takewhile(lambda one: one != name, order))
        return 0

    def take(
        self, places: int, may: Callable[[str], bool] = lambda namespace: True
    ) -> tuple[str, str, Task] | None:
        """Namespace, name and task of what is to run next, where one of so many places is free, of
        the namespaces that `may` have one."""
        if len(self.running) >= places:
            return None
        busy = list(self.running.values())
        free = [one for one in self.waiting if not self.most or busy.count(one) < self.most]
        free = [one for one in free if may(one)]
        if not free:
            return None
        namespace = min(free, key=lambda one: (self.given[one], self.turns.get(one, 0)))
        first = self.urgent.get(namespace) or self.waiting[namespace]
        name = next(iter(first))
        task = self.waiting[namespace].pop(name)
        first.pop(name, None)
        if not self.waiting[namespace]:
            del self.waiting[namespace]
            self.urgent.pop(namespace, None)
        self.running[name] = namespace
        self.given[namespace] += 1.0 / self.weights.get(namespace, 1.0)
        self.turns[namespace] = max(self.turns.values(), default=0) + 1
        return namespace, name, task

    def wanted(self, may: Callable[[str], bool]) -> int:
        """Places that there is work for: tasks that run, and that could where places are free."""
        busy = Counter(self.running.values())
        found = len(self.running)
        for namespace, tasks in self.waiting.items():
            if may(namespace):
                room = max(0, self.most - busy[namespace]) if self.most else len(tasks)
                found += min(room, len(tasks))
        return found

    def done(self, name: str) -> str | None:
        """A task ended, or nobody is at it any more: its namespace."""
        namespace = self.running.pop(name, None)
        if namespace is not None and not self.waiting and not self.running:
            self.given.clear()  # nobody is ahead of anybody
            self.turns.clear()
        return namespace
