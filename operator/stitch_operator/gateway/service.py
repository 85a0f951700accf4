"""What the gateway does, without HTTP: submissions, standings, artifacts, events, savings.

Everything that can block is called through `Blocking`; the rest is memory. Nothing here is needed
again after a crash: what counts is in the ledger and in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stitch_operator.gateway import answers, archive, made, trust, waiting
from stitch_operator.gateway.archive import Archive, Archives
from stitch_operator.gateway.blocking import Blocking, every
from stitch_operator.gateway.digests import Digests
from stitch_operator.gateway.fair import Line
from stitch_operator.gateway.identity import Cached, Identity
from stitch_operator.gateway.ledger import Known, Ledger
from stitch_operator.gateway.limits import Buckets, Held, Rate
from stitch_operator.gateway.metrics import Metrics
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.queue import Queue
from stitch_operator.gateway.records import SubmitGraph
from stitch_operator.gateway.sharing import SHARE_SECONDS, Sharing
from stitch_operator.gateway.standing import (
    PAUSE_SECONDS,
    SILENT_SECONDS,
    Next,
    Situation,
    Standing,
    answered_since,
    crashed,
    decide,
    tell,
)
from stitch_operator.gateway.trust import Trust
from stitch_operator.gateway.workloads import FIGURES_SECONDS, Sightings
from stitch_operator.reports import Made, Workloads
from stitchcore.artifact.keys import code_version, content_key, request_key
from stitchcore.artifact.ratio import HIGHEST, stored_ratio
from stitchcore.artifact.store import Store
from stitchcore.inject.contract import SIGNATURE
from stitchcore.service.queues import queue_name

FOLLOW_SECONDS = 0.5
TRUST_SECONDS = 5.0
NOTE_SECONDS = 2.0
PRUNE_SECONDS = 3600.0
ANSWER_SECONDS = {"pending": 0.25, "ready": 5.0, "refused": 5.0}
"""How long an answer read from the store is believed."""
MOST_REMEMBERED = 50_000
NAMESPACE, CLUSTER = "namespace", "cluster"
BODY_BYTES = 2**30
"""Twice over, the largest body fits into the half that one namespace may have."""
LOCKS = 256
"""Requests are decided on one at a time each; those that share a lock wait for each other."""


@dataclass(frozen=True)
class Rates:
    """Per namespace: calls, bytes of graphs, and compiles that are begun."""

    calls: Rate
    bytes: Rate
    compiles: Rate


DAY_SECONDS = 86400.0
USED_SECONDS = DAY_SECONDS / 2
RECOUNTS = Rate(1 / 60, 1)
"""How often what a namespace has in the store is counted anew because it has no room."""
RATES = Rates(Rate(200, 400), Rate(32 * 2**20, 512 * 2**20), Rate(1, 200))


@dataclass(frozen=True)
class Shares:
    """Of the workers, per namespace: compilations at a time (0: any number), core seconds of them
    a day, and what it is given beside the others, 1 where it is not named."""

    most: int = 0
    day: float = 10.0 * DAY_SECONDS
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """What the gateway is made of. `public_keys` are added to those the signer publishes;
    `cache_scope` (NAMESPACE, CLUSTER) says whose graphs may share compiled kernels; bodies of calls
    take `body_bytes` of memory at most. `reader` (namespace/account) may read of all workloads. For
    queues `on_demand` workers are started when tasks wait, so that there may be none yet."""

    store: Store
    queue: Queue
    ledger: Ledger
    digests: Digests
    authenticator: Cached[Identity]
    metrics: Metrics
    public_keys: tuple[str, ...] = ()
    rates: Rates = RATES
    store_seconds: float = 10.0
    cache_scope: str = NAMESPACE
    body_bytes: int = BODY_BYTES
    reader: str = ""
    shares: Shares = field(default_factory=Shares)
    on_demand: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Handed:
    """What a submission brings: it is kept once somebody is to work on it, not before."""

    graph: bytes
    meta: str
    session: str | None
    waits: bool


@dataclass
class Memory:
    """What one process remembers and may forget at any time. Times by the monotonic clock."""

    answers: OrderedDict[str, tuple[float, Mapping[str, Any] | None, bool]]
    known: OrderedDict[tuple[str, str], tuple[float, Known]]
    pending: dict[str, Known] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    finished: OrderedDict[str, None] = field(default_factory=OrderedDict)
    used: OrderedDict[str, float] = field(default_factory=OrderedDict)
    counted_refusals: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)
    made: OrderedDict[str, Made] = field(default_factory=OrderedDict)
    locks: tuple[asyncio.Lock, ...] = ()


class Service:
    """The calls of a gateway. `start` and `stop` around its life, in one event loop."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.metrics = parts.metrics
        self.store = Blocking("store", 16, parts.store_seconds)
        self.broker = Blocking("broker", 4, 15.0)
        self.ledger = Blocking("ledger", 1, 10.0)
        self.authority = Blocking("API server", 8, 15.0)
        self.pages = Blocking("report's page", 2, 30.0)
        self.trust: Trust | None = None
        self.calls = Buckets(parts.rates.calls)
        self.bytes = Buckets(parts.rates.bytes)
        self.bodies = Held(parts.body_bytes)
        self.sightings = Sightings()
        self._compiles = Buckets(parts.rates.compiles)
        self._budgets = Buckets(Rate(parts.shares.day / DAY_SECONDS, parts.shares.day))
        self._lines: dict[str, Line[Known]] = {}
        self._recounts = Buckets(RECOUNTS)
        self._sharing = Sharing(
            {"calls": self.calls, "bytes": self.bytes, "compiles": self._compiles,
             "day": self._budgets}
        )  # fmt: skip
        self._archives = Archives()
        self._idle = waiting.Reader(parts.store)
        self._memory = Memory(OrderedDict(), OrderedDict())
        self._memory.locks = tuple(asyncio.Lock() for _ in range(LOCKS))
        self.demand: Mapping[str, int] = dict.fromkeys(parts.on_demand, 0)
        self._code = code_version()
        self.since = time.time()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        loops = [
            (self._follow, FOLLOW_SECONDS),
            (self._read_trust, TRUST_SECONDS),
            (self._prune, PRUNE_SECONDS),
            (self._note, NOTE_SECONDS),
            (self._settle, FIGURES_SECONDS),
            (self._read_idle, waiting.LOOK_SECONDS),
        ]
        if self.parts.ledger.shared:
            loops.append((self._share, SHARE_SECONDS))
        self._tasks = [asyncio.create_task(every(*loop)) for loop in loops]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.parts.digests.close()
        for blocking in (self.store, self.broker, self.authority, self.pages):
            blocking.close()
        self.ledger.finish()
        self.parts.ledger.close()
        self.parts.queue.close()

    async def identify(self, token: str, address: str) -> Identity:
        """Who a token is that came from `address`. Raises Rejected."""
        known = self.parts.authenticator.remembered(token)
        if known is not None:
            return known
        return await self.authority(self.parts.authenticator.identify, token, address)

    # Calls

    async def submit(self, identity: Identity, request: SubmitGraph) -> Standing:
        """Where a graph stands, after it was handed in."""
        graph = await self.parts.digests.of(request.graph, request.preserve, identity.namespace)
        key = request_key(
            *(graph.digest, request.target, request.minor, request.abi, graph.preserve),
            xla=request.xla,
            deterministic=request.deterministic,
            tenant=tenant_of(identity.namespace),
        )
        meta = {
            "digest": graph.digest,
            "tenant": tenant_of(identity.namespace),
            "scope": scope_of(self.parts.cache_scope, identity.namespace),
            **{name: getattr(request, name) for name in META},
        }
        known = Known(key, graph.digest, request.target, request.minor, None, 0, None, None)
        about = json.dumps(meta, sort_keys=True)
        handed = Handed(request.graph, about, request.session, request.waits)
        return await self._stands(identity, known, handed)

    async def standing(self, identity: Identity, key: str) -> Standing:
        """Where the request stands whose key, artifact's key or canonical digest is `key`; of
        several of one digest, the one handed in last."""
        try:
            return await self._standing(identity, key)
        except Rejected as rejected:
            if rejected.problem is not Problem.NOT_FOUND:
                raise
            latest = await self.ledger.of(
                identity.namespace, self.parts.ledger.latest, identity.namespace, key
            )
            if latest is None:
                raise
            return await self._standing(identity, latest)

    async def artifact(self, identity: Identity, key: str) -> tuple[str, Archive] | Standing:
        """An artifact's key and archive, else where its request stands."""
        if self.trust is None:
            raise Rejected(Problem.UNAVAILABLE, "the revocation list has not been read yet")
        standing = await self._standing(identity, key)
        if standing.status != "ready":
            return standing
        if standing.key in self.trust.revoked:
            self._archives.drop(standing.key)
            raise Rejected(Problem.REVOKED, f"artifact {standing.key[:12]} is revoked")
        archived = self._archives.get(standing.key)
        if archived is None:
            archived = await self.store(archive.pack, self.parts.store, standing.key)
            self._archives.keep(standing.key, archived)
        return standing.key, archived

    async def known(self, namespace: str, key: str) -> Known:
        """The namespace's request by its own or its artifact's key. Raises Rejected(NOT_FOUND)."""
        memory, now = self._memory.known, time.monotonic()
        until, known = memory.get((namespace, key), (0.0, None))
        if known is not None and now < until:
            return known
        known = await self.ledger.of(namespace, self.parts.ledger.find, namespace, key)
        if known is None:
            what = f"namespace {namespace!r} has handed in no graph of key {key[:12]}"
            raise Rejected(Problem.NOT_FOUND, what)
        if known.artifact is not None:
            _remember(memory, (namespace, key), (now + 10.0, known))
        return known

    # Standing

    async def _standing(self, identity: Identity, key: str) -> Standing:
        return await self._stands(identity, await self.known(identity.namespace, key), None)

    async def _stands(self, identity: Identity, known: Known, handed: Handed | None) -> Standing:
        async with self._memory.locks[hash(known.request) % LOCKS]:
            standing = await self._decided(identity, known, handed)
        self.sightings.stood(identity, known.digest, standing, time.time())
        if standing.status == "refused":
            await self._count_once(identity.namespace, standing)
        return standing

    async def _decided(self, identity: Identity, known: Known, handed: Handed | None) -> Standing:
        answer, published = await self._answer(known.request)
        status = (answer or {}).get("status")
        queue = queue_name(known.target, known.tf)
        if status != "ready" or not published:
            known = await self._current(identity.namespace, known)
        served = queue in self.parts.on_demand or queue in self.parts.queue.served()
        moments = (self._code, self.since, time.time())
        at = Situation(answer, published, known.enqueued, 0, served, *moments)
        step = decide(at)
        if step is Next.ENQUEUE and known.request in self._line(queue):
            step = Next.WAIT  # here
        if step is Next.ENQUEUE and handed is None and not await self._is_kept(known):
            raise self._collected(known)
        if step is Next.ENQUEUE and known.enqueued is not None:
            step = decide(replace(at, waiting=await self._waiting(queue)))
        if handed is not None:
            results = {Next.READY: "hit", Next.ENQUEUE: "miss"}
            self.metrics.cache(results.get(step, "join"))
        if step is not Next.NO_WORKER:
            await self._admit(identity, known, handed, step)
        if status in ("ready", "refused") and known.request not in self._memory.finished:
            await self._finish(known, answer or {})
        if step is Next.READY:
            artifact = str((answer or {})["key"])
            about = (identity, artifact, known.target)
            if await self.ledger.of(identity.namespace, self.parts.ledger.breaker, *about):
                return crashed(known.request, artifact)
            await self._note_use(known.request)
        if step is Next.ENQUEUE:
            self._line(queue).add(identity.namespace, known.request, known)
        if handed is not None and handed.waits and queue in self._lines:
            self._lines[queue].urge(known.request)
        if step is Next.ENQUEUE:
            await self._dispatch(queue)
        return tell(known.request, step, answer, queue, self._ahead(queue, known.request))

    async def _current(self, namespace: str, known: Known) -> Known:
        row = await self.ledger.of(namespace, self.parts.ledger.find, namespace, known.request)
        return row or known

    async def _admit(
        self, identity: Identity, known: Known, handed: Handed | None, step: Next
    ) -> None:
        """Charge for a compile, or for a request that waits for one, and keep what was handed in:
        in this order, so that what is turned away leaves nothing behind."""
        waits = step in (Next.ENQUEUE, Next.WAIT)
        new = handed is not None and waits and not await self._is_kept(known)
        if step is Next.ENQUEUE or new:
            now = time.monotonic()
            wait = self._compiles.take(identity.namespace, 1, now)
            if wait:
                raise Rejected(Problem.RATE_LIMITED, "too many new graphs", wait)
            wait = self._budgets.take(identity.namespace, 0, now)
            if wait:
                raise Rejected(Problem.QUOTA, "the day's core seconds of compilations", wait)
        if handed is None:
            return
        if new:
            await self._make_room(identity.namespace, known, len(handed.graph))
            files = {"graph.pb": handed.graph, "meta.json": handed.meta.encode()}
            publish = self.parts.store.publish
            await self.store(publish, files, "meta.json", "requests", known.request)
        about = (identity, handed.session, known, time.time())
        await self.ledger.of(identity.namespace, self.parts.ledger.submitted, *about)

    async def _make_room(self, namespace: str, known: Known, size: int) -> None:
        """Take the graph into the namespace's account, once what the collector has removed is out
        of it. Raises Rejected(QUOTA). What waits is never removed for what is new."""
        about = (namespace, known, size, time.time())
        if await self.ledger.of(namespace, self.parts.ledger.keeps, *about):
            return
        if not self._recounts.take(namespace, 1, time.monotonic()):
            held = await self.ledger.of(namespace, self.parts.ledger.kept, namespace, time.time())
            gone = await self.store(self._missing, held)
            await self.ledger.of(namespace, self.parts.ledger.gone, gone)
            if await self.ledger.of(namespace, self.parts.ledger.keeps, *about):
                return
        raise Rejected(Problem.QUOTA, f"graphs of namespace {namespace!r} take up its share")

    def _missing(self, requests: Sequence[str]) -> list[str]:
        exists = self.parts.store.exists
        return [one for one in requests if not exists("requests", one, "meta.json")]

    async def _is_kept(self, known: Known) -> bool:
        return await self.store(self.parts.store.exists, "requests", known.request, "meta.json")

    def _collected(self, known: Known) -> Rejected:
        """The ledger knows it, the store no longer."""
        self._waits_no_more(known.request)
        return Rejected(Problem.NOT_FOUND, f"graph {known.request[:12]} was collected")

    async def _note_use(self, request: str) -> None:
        """Where the collector sees that an artifact is in use. A store that takes no file now is
        told the next time."""
        if time.monotonic() < self._memory.used.get(request, 0.0):
            return
        _remember(self._memory.used, request, time.monotonic() + USED_SECONDS)
        with contextlib.suppress(Rejected):
            await self.store(self.parts.store.write, b"", "requests", request, "used")

    def _line(self, queue: str) -> Line[Known]:
        found = self._lines.get(queue)
        if found is None:
            found = self._lines[queue] = Line(self.parts.shares.most, self.parts.shares.weights)
        return found

    def _ahead(self, queue: str, request: str) -> float:
        """Tasks that go before a request, for each worker; no further than it matters."""
        line, places = self._lines.get(queue), self.parts.queue.places(queue)
        return 0.0 if line is None else line.ahead(request, int(PAUSE_SECONDS * places)) / places

    def _may_run(self, namespace: str) -> bool:
        """Whether the day's core seconds are not used up: what was taken in before waits too."""
        return not self._budgets.take(namespace, 0, time.monotonic())

    async def _dispatch(self, queue: str) -> None:
        """Give workers that are free what is next. What cannot be enqueued is asked for again."""
        line = self._line(queue)
        while (taken := line.take(self.parts.queue.places(queue), self._may_run)) is not None:
            try:
                await self._enqueue(taken[2])
            except Rejected:
                line.done(taken[1])
                raise

    async def _enqueue(self, known: Known) -> None:
        now = time.time()  # before anyone can have answered the task
        await self.broker(self.parts.queue.submit, known.request, known.target, known.tf)
        await self.ledger(self.parts.ledger.enqueued, known.request, now)
        self._memory.pending[known.request] = known
        self._memory.begun.discard(known.request)
        self._memory.finished.pop(known.request, None)
        self._memory.answers.pop(known.request, None)

    async def _waiting(self, queue: str) -> int:
        """Tasks in line; where the broker does not say, none: then a request may be sent twice."""
        try:
            return await self.broker(self.parts.queue.depth, queue)
        except Rejected:
            return 0

    async def _answer(self, request: str) -> tuple[Mapping[str, Any] | None, bool]:
        """The store's answer, and whether the artifact it names is there."""
        until, answer, published = self._memory.answers.get(request, (0.0, None, False))
        if time.monotonic() < until:
            return answer, published
        answer, published = await self.store(self._read_answer, request)
        seconds = ANSWER_SECONDS.get(str((answer or {}).get("status")), 0.0)
        entry = (time.monotonic() + seconds, answer, published)
        _remember(self._memory.answers, request, entry)
        return answer, published

    def _read_answer(self, request: str) -> tuple[Mapping[str, Any] | None, bool]:
        answer = answers.understood(self.parts.store.read_answer(request))
        if answer is None or answer.get("status") != "ready":
            return answer, False
        return answer, self.parts.store.exists("artifacts", str(answer["key"]), SIGNATURE)

    async def _finish(self, known: Known, answer: Mapping[str, Any]) -> None:
        """Keep what a final answer says: its artifact, measured ratio, and what it cost."""
        artifact = str(answer["key"]) if answer["status"] == "ready" else None
        ratio = await self.store(self._ratio, answer) if artifact else None
        device = "cpu" if known.target.startswith("cpu") else "gpu"
        costs = answers.spent(answer)
        final = (known.request, artifact, ratio, costs, device, answers.account(answer))
        if await self.ledger(self.parts.ledger.finished, *final):
            for result, count in answers.kernels(answer).items():
                self.metrics.cache(f"kernel_{result}", count)
            for what in set(answer.get("open") or ()):
                self.metrics.unconfined(what)
        _remember(self._memory.finished, known.request, None)
        queue = queue_name(known.target, known.tf)
        namespace = self._line(queue).done(known.request)
        if namespace is not None:
            self._budgets.charge(namespace, sum(costs.values()), time.monotonic())
            await self._dispatch(queue)

    def _ratio(self, answer: Mapping[str, Any]) -> float:
        said = answer.get("ratio")
        if isinstance(said, int | float) and said >= 1:
            return min(float(said), HIGHEST)
        key = str(answer["key"])
        if not self.parts.store.exists("artifacts", key, SIGNATURE):
            return 1.0
        return stored_ratio(self.parts.store, key)

    async def _count_once(self, namespace: str, standing: Standing) -> None:
        """Count a refusal once per namespace and graph, however often it is asked for."""
        mark = (namespace, f"{standing.request}:{standing.reason}")
        if mark not in self._memory.counted_refusals:
            about = (namespace, standing.request, standing.reason, time.time())
            await self.ledger.of(namespace, self.parts.ledger.refused, *about)
            _remember(self._memory.counted_refusals, mark, None)

    async def workloads(self, since: str, now: float) -> Workloads:
        """A page of what has changed, with what each graph's artifact makes of its step: without
        it where the store does not answer, since the rest is the ledger's."""
        page = await self.ledger(self.parts.ledger.workloads, since, now)
        with contextlib.suppress(Rejected):
            for key in made.keys(page) - self._memory.made.keys():
                found = await self.store(made.stored, self.parts.store, key)
                if found is not None:
                    _remember(self._memory.made, key, found)
        return made.with_made(page, self._memory.made)

    # In the background

    async def _follow(self) -> None:
        """Watch what was enqueued, so that waits and durations are seen though nobody asks, and
        workers that have come since get theirs."""
        self.metrics.pending.set(len(self._memory.pending))
        wanted = {name: line.wanted(self._may_run) for name, line in self._lines.items()}
        self.demand = {**self.demand, **wanted}
        self.metrics.queues(self.demand)
        for queue in list(self._lines):
            with contextlib.suppress(Rejected):  # it is asked for again
                await self._dispatch(queue)
        for request, known in list(self._memory.pending.items()):
            answer, _ = await self._answer(request)
            said = answer or {}
            row = await self.ledger(self.parts.ledger.request, request)
            if row is None:  # pruned
                self._waits_no_more(request)
                continue
            enqueued = row.enqueued or self.since
            if not answered_since(said, enqueued):
                await self._give_up(known, enqueued)
                continue
            waited = max(0.0, float(said.get("time") or 0.0) - enqueued)
            if request not in self._memory.begun:
                self._memory.begun.add(request)
                self.metrics.queue_wait.observe(waited)
            if said.get("status") in ("ready", "refused"):
                self.metrics.compiled(known.target, waited)
                await self._finish(known, said)
                self._waits_no_more(request)

    async def _share(self) -> None:
        """Tell the other gateways what namespaces have taken here, and hear what they took."""
        news = self._sharing.news()
        others = await self.ledger(
            self.parts.ledger.exchange, self._sharing.name, news, time.time()
        )
        self._sharing.hear(news, others, time.monotonic())

    async def _give_up(self, known: Known, enqueued: float) -> None:
        """A task that no worker has begun for so long takes nobody's place, where there are any:
        those that are started for it may take longer."""
        queue = queue_name(known.target, known.tf)
        late = time.time() - enqueued > SILENT_SECONDS and queue in self.parts.queue.served()
        if late and self._line(queue).done(known.request):
            await self._dispatch(queue)

    def _waits_no_more(self, request: str) -> None:
        self._memory.pending.pop(request, None)
        self._memory.begun.discard(request)

    async def _read_trust(self) -> None:
        self.trust = await self.store(trust.read, self.parts.store, self.parts.public_keys)

    async def _note(self) -> None:
        pods, graphs = self.sightings.take()
        try:
            if pods or graphs:
                await self.ledger(self.parts.ledger.note, pods, graphs)
        except Rejected:
            self.sightings.restore(pods, graphs)
            raise

    async def _settle(self) -> None:
        await self.ledger(self.parts.ledger.settle)

    async def _read_idle(self) -> None:
        lives = await self.store(self._idle.look, time.time())
        if lives:
            await self.ledger(self.parts.ledger.waited, lives)

    async def _prune(self) -> None:
        await self.ledger(self.parts.ledger.prune, time.time())
        self._memory.finished.clear()  # who hands in again what was pruned has it finished again


def tenant_of(namespace: str) -> str:
    """What a namespace's requests and artifacts are parted by."""
    return content_key("namespace", [namespace])


def scope_of(cache_scope: str, namespace: str) -> str:
    """What a request's kernels are kept under: those of other scopes never meet."""
    return CLUSTER if cache_scope == CLUSTER else tenant_of(namespace)


META = ("tf", "target", "threads", "abi", "preserve", "xla", "deterministic")


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MOST_REMEMBERED:
        memory.popitem(last=False)
