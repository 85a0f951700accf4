"""Order among a region's launches: by tensors, and what a check may stop runs after the check.

In the framework whatever follows the operation that raises an error does not run, so no variable is
changed from then on. In a region a launch that follows that operation need not read what the
checking launch computes (its inputs may be recomputed, its own check may not see everything): it
waits for the check by a control edge. What a checking launch needs itself cannot wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stitchcore.launch.place import Constant, Launch, Place
from stitchcore.tensorflow.graph import Edge


def dependents(launches: Sequence[Launch], first: int) -> frozenset[int]:
    """Launches that need an output of launch `first`, directly or not. Launches are in order."""
    written = set(launches[first].outputs)
    users = set()
    for number, launch in enumerate(launches):
        if not written.isdisjoint(launch.inputs):
            written.update(launch.outputs)
            users.add(number)
    return frozenset(users)


def after_checks(
    names: Sequence[str],
    launches: Sequence[Launch],
    assignments: Mapping[str, Place | Constant],
    readers: Mapping[Edge, Sequence[str]],
    writers: Mapping[Edge, str],
) -> list[tuple[str, str]]:
    """Control edges of a patch: (node, the checking node that it waits for). `names[i]` is launch
    i's node, `assignments` are the nodes that store values; the writer of a variable waits for its
    readers anyway."""
    checking = [name for name, launch in zip(names, launches, strict=True) if launch.kernel.errors]
    if not checking:
        return []
    owners = {
        place: name
        for name, launch in zip(names, launches, strict=True)
        for place in launch.outputs
    }
    reads = {name: launch.inputs for name, launch in zip(names, launches, strict=True)}
    reads |= {name: (place,) for name, place in assignments.items()}
    before = {
        name: {owners[place] for place in places if place in owners}
        for name, places in reads.items()
    }
    for handle, writer in writers.items():
        before[writer] |= {reader for reader in readers.get(handle, ()) if reader != writer}
    needed = _closure(before, checking)
    waiting = [name for name in before if name not in needed]
    edges = ((name, check) for name in waiting for check in checking if check not in before[name])
    return [(f"+{name}", f"^+{check}") for name, check in edges]


def _closure(before: Mapping[str, set[str]], last: Iterable[str]) -> set[str]:
    reached: set[str] = set()
    stack = list(last)
    while stack:
        name = stack.pop()
        if name not in reached:
            reached.add(name)
            stack.extend(before[name])
    return reached
