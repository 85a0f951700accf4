"""Canonical digests of strangers' graphs, computed in child processes that hold nothing.

Numbering a large graph takes a second of one core, and what a stranger sends may make it take
longer or crash it: children keep the gateway answering, and each graph has a limit of size, time
and memory. A graph that ends its child is alone to blame: those in line have not begun, and
namespaces take turns. Equal bodies are numbered once.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import multiprocessing
import os
import resource
import signal
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from stitch_operator.gateway import graph_size
from stitch_operator.gateway.fair import Line
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.wire import MESSAGES
from stitchcore.inject.digest import number

SECONDS = 60
PR_SET_PDEATHSIG = 1
MEMORY_BYTES = 6 * 2**30
REMEMBERED = 10_000


@dataclass(frozen=True)
class Canonical:
    """A graph's digest and the canonical ids of its preserved nodes, sorted."""

    digest: str
    preserve: tuple[int, ...]


@dataclass(frozen=True)
class BadGraph:
    """Why bytes are not a graph that can be numbered."""

    what: str


def canonical(graph: bytes, preserve: Sequence[str]) -> Canonical | BadGraph:
    """Number a serialized GraphDef. Pure; runs in a child."""
    try:
        what = graph_size.too_large(graph_size.size_of(graph))
        if what:
            return BadGraph(what)
        parsed = MESSAGES["GraphDef"].FromString(graph)
        if not parsed.node:
            return BadGraph("it has no nodes")
        numbering = number(parsed, preserve)
        missing = [name for name in preserve if name not in numbering.ids]
        if missing:
            return BadGraph(f"{len(missing)} preserved nodes are not in the graph")
    except (DecodeError, ValueError, KeyError, RecursionError, MemoryError) as error:
        return BadGraph(f"{type(error).__name__}: {error}"[:300])
    ids = sorted(numbering.ids[name] for name in set(preserve))
    return Canonical(numbering.digest, tuple(ids))


def _limited(parent: int) -> None:
    """In a new child: no more memory than MEMORY_BYTES, signals to the gateway are not its own, and
    it does not outlive the gateway, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died before the line above
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _timed(graph: bytes, preserve: Sequence[str]) -> Canonical | BadGraph:
    signal.alarm(SECONDS)  # its default action ends the child; no Python code can hold it up
    try:
        return canonical(graph, preserve)
    finally:
        signal.alarm(0)


class Digests:
    """`processes` children, each numbering one graph at a time, and what they have found. `close`
    ends them.

    Each child is a pool of its own, and gets a graph when it is free: what breaks a pool is then
    the one graph that it has, however many wait.
    """

    def __init__(self, processes: int = 1) -> None:
        self._known: OrderedDict[bytes, Canonical] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[Canonical]] = {}
        self._pools = [_made() for _ in range(processes)]
        self._free = list(range(processes))
        self._line: Line[asyncio.Future[int]] = Line()

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    async def of(self, graph: bytes, preserve: Sequence[str], namespace: str = "") -> Canonical:
        """Digest of a graph; namespaces take turns. Raises Rejected(BAD_REQUEST)."""
        mark = hashlib.sha256(json.dumps(list(preserve)).encode() + b"\0" + graph).digest()
        known = self._known.get(mark)
        if known is not None:
            self._known.move_to_end(mark)
            return known
        running = self._running.get(mark)
        if running is None:
            running = asyncio.ensure_future(self._number(mark, graph, preserve, namespace))
            self._running[mark] = running
            running.add_done_callback(lambda done: self._running.pop(mark, None))
        return await asyncio.shield(running)

    async def _number(
        self, mark: bytes, graph: bytes, preserve: Sequence[str], namespace: str
    ) -> Canonical:
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line.add(namespace, mark.hex(), turn)
        self._call_up()
        place = await turn
        try:
            found = await asyncio.wrap_future(self._begun(place, graph, list(preserve)))
        except BrokenProcessPool:
            what = f"numbering the graph took more than {SECONDS} s, or ended its process"
            raise Rejected(Problem.BAD_REQUEST, what) from None
        finally:
            self._free.append(place)
            self._line.done(mark.hex())
            self._call_up()
        if isinstance(found, BadGraph):
            raise Rejected(Problem.BAD_REQUEST, f"graph: {found.what}")
        self._known[mark] = found
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found

    def _call_up(self) -> None:
        while (taken := self._line.take(len(self._pools))) is not None:
            taken[2].set_result(self._free.pop())

    def _begun(
        self, place: int, graph: bytes, preserve: Sequence[str]
    ) -> Future[Canonical | BadGraph]:
        """The graph in the child of `place`, or in a new one if an earlier graph ended that."""
        try:
            return self._pools[place].submit(_timed, graph, preserve)
        except BrokenProcessPool:
            self._pools[place] = _made()
            return self._pools[place].submit(_timed, graph, preserve)


def _made() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_limited, initargs=(os.getpid(),))
