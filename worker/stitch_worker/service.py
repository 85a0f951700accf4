"""One request from the queue to its answer: what a task does, without Celery.

Every step may be repeated and every process may die between any two of them: what is already done
is found in the store and not done again. Graphs are never parsed here, only in the compile child.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from stitch_worker import attempts, unsigned
from stitch_worker.answers import Answers, is_final, token_of
from stitch_worker.attempts import Attempts
from stitch_worker.children import Children
from stitch_worker.compiling import Died, Job, Spent, compile_alone
from stitch_worker.lease import SECONDS, Keeper, Lease, Leases
from stitch_worker.revocation import revoked
from stitch_worker.units import Units, scope_of
from stitchcore.artifact import package
from stitchcore.artifact.keys import code_version
from stitchcore.artifact.package import Unsigned
from stitchcore.artifact.ratio import stored_ratio
from stitchcore.artifact.store import Store
from stitchcore.device.records import device_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.inject.contract import KERNEL_ABI
from stitchcore.optimize.pipeline import key_of
from stitchcore.optimize.request import Request
from stitchcore.options import PLANNER, Options

KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Service:
    """What a worker works with. `target` and `tf` (minor version) are its own; `children` starts
    what handles graphs; `observe` gets (event, key) for metrics and tests. `secret` is what kernels
    are cached under for other graphs (units.py); without one they are not cached. `open` is what
    compile children can reach here though they should not: it goes into every answer, to be
    counted."""

    store: Store
    leases: Leases
    target: str
    tf: str
    children: Children
    planner: str = PLANNER
    tune: float = 0.0
    jobs: int = 1
    lease_seconds: float = SECONDS
    observe: Callable[[str, str], None] = lambda event, key: None
    secret: bytes | None = None
    open: tuple[str, ...] = ()


def process(service: Service, key: str) -> str:
    """Bring request `key` one step to its end, in this process's own time.

    Returns what happened: "ready", "refused", "signing" (it waits for the signer), "held" (another
    worker is at it), "again" (its compile child died for the first time), "lost" (another worker
    took over), "gone" (the request was collected: who still wants it hands it in anew). Raises
    Refused(STORE_UNREADABLE) where the store does not do its part, and OSError where leases cannot
    be asked, or who starts compile children is gone: try again later.
    """
    if not KEY.fullmatch(key):
        raise Refused(key[:80], Reason.DIGEST_MISMATCH, "not a request's key")
    lease = _acquired(service, key)
    if isinstance(lease, str):
        return lease
    with Keeper(service.leases, lease, service.lease_seconds) as keeper:
        answer = service.store.read_answer(key)
        known = attempts.going_on(attempts.read(service.store, key), answer, lease.token)
        answers = Answers(service.store, key, lease.token, service.open, known.account)
        try:
            return _process(service, key, known, answers, keeper)
        except Refused as refused:
            reason = refused.refusal.reason
            if reason is Reason.LEASE_LOST:
                return "lost"
            if reason is Reason.STORE_UNREADABLE:
                raise
            answers.refused(refused.refusal, known.spent)
            return "refused"


def _acquired(service: Service, key: str) -> Lease | str:
    """The lease, or what makes it needless: a refusal does not, it is told anew under a lease.
    Waits as long as a dead holder's lease may live: one that is renewed meanwhile has a living
    holder, who finishes the work."""
    deadline = time.monotonic() + service.lease_seconds * 1.2
    while True:
        answer = service.store.read_answer(key)
        if _ready(service, answer):
            return "ready"
        lease = service.leases.acquire(key, token_of(answer))
        if lease is not None:
            return lease
        if time.monotonic() > deadline:
            return "held"
        time.sleep(min(0.5, service.lease_seconds / 10))


def _ready(service: Service, answer: Mapping[str, Any] | None) -> bool:
    if answer is None or answer.get("status") != "ready":
        return False
    return package.exists(service.store, str(answer.get("key")))


def _process(service: Service, key: str, known: Attempts, answers: Answers, keeper: Keeper) -> str:
    present = service.store.exists("requests", key, "meta.json")
    answer = service.store.read_answer(key)  # as late as may be: the signer may write it
    if _ready(service, answer):
        return "ready"  # who had the lease before us has done it
    if answer is not None and is_final(answer):
        answers.still(answer)
        return "refused"
    if not present:
        return "gone"
    answers.pending("start", spent=known.spent)
    job = _job(service, key)
    if job.artifact in revoked(service.store):
        raise Refused(job.artifact[:16], Reason.REVOKED, "it is on the revocation list")
    # The signer answers, with what was spent, after it has published: until then it is at it. It
    # may have done so while we wrote over its answer.
    if unsigned.waiting(service.store, job.artifact):
        answers.pending("sign", spent=known.spent)
        if unsigned.waiting(service.store, job.artifact):
            return "signing"
    if package.exists(service.store, job.artifact):
        answers.ready(job.artifact, stored_ratio(service.store, job.artifact), known.spent)
        return "ready"
    refusal = attempts.verdict(known)
    if refusal is not None:
        answers.refused(refusal, known.spent)
        return "refused"
    return _compile(service, job, known, answers, keeper)


def _job(service: Service, key: str) -> Job:
    """The request, which must be for this worker. Raises Refused."""
    store = service.store
    data = store.read("requests", key, "meta.json")
    try:
        meta = json.loads(data)
        digest, target = str(meta["digest"]), str(meta["target"])
        request = Request(digest, store.read("requests", key, "graph.pb"), meta)
        needs = (target, request.tf, int(meta.get("abi", KERNEL_ABI)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused("meta.json", Reason.PARSE_ERROR, repr(error)) from error
    device = device_of(target)
    if target != service.target or device is None:
        raise Refused(target, Reason.WRONG_TARGET, f"this worker is {service.target}")
    if needs != (service.target, service.tf, KERNEL_ABI):
        detail = f"this worker has TensorFlow {service.tf}, ABI {KERNEL_ABI}"
        raise Refused(f"TensorFlow {needs[1]}, ABI {needs[2]}", Reason.UNSUPPORTED_VERSION, detail)
    nowhere = Path()  # no folder is in a key
    options = Options(nowhere, nowhere, nowhere, planner=service.planner, tune=service.tune)
    artifact = key_of(request, device, options)
    expected = {"digest": digest, "target": target, "tf": service.tf, "abi": KERNEL_ABI}
    return Job(
        *(key, request.graph, data, artifact, expected, service.planner, service.jobs),
        tune=service.tune,
        scope=scope_of(meta),
    )


def _compile(service: Service, job: Job, known: Attempts, answers: Answers, keeper: Keeper) -> str:
    store, key = service.store, job.key
    service.children.ready()  # nothing has begun where nobody can begin it
    known = structs.replace(known, started=known.started + 1)
    attempts.write(store, key, known)
    spent = Spent()
    spent.seconds.update(known.spent)

    def progress(stage: str, done: int, total: int) -> None:
        answers.pending(stage, done, total, spent=dict(spent.seconds))
        service.observe(stage, key)

    service.observe("begin", key)
    cache = _unit_cache(service, job)
    result = compile_alone(job, service.children, progress, keeper.lost.is_set, spent, cache)
    if result is None or not keeper.check():
        return "lost"
    ended = _with_end(known, result, spent)
    attempts.write(store, key, ended)
    if isinstance(result, Died):
        refusal = attempts.verdict(ended)
        if refusal is None:
            answers.pending("again", spent=dict(spent.seconds))
            return "again"
        answers.refused(refusal, spent.seconds, spent.units)
        return "refused"
    if isinstance(result, Refusal):
        answers.refused(result, spent.seconds, spent.units)
        return "refused"
    return _hand_on(service, key, result, answers, spent)


def _unit_cache(service: Service, job: Job) -> Units | None:
    """The cache of this request's kernels, None where it has none."""
    if service.secret is None or job.scope is None:
        return None
    return Units(service.store, service.secret, job.scope, service.target)


def _hand_on(service: Service, key: str, artifact: Unsigned, answers: Answers, spent: Spent) -> str:
    """To the signer, who gives the answer."""
    answers.pending("upload", spent=dict(spent.seconds))
    service.observe("upload", key)
    about = (answers.token, spent.seconds, spent.units, service.open, answers.account)
    origin = unsigned.Origin(key, code_version(), *about)
    unsigned.upload(service.store, artifact, origin)
    service.observe("uploaded", key)
    answers.pending("sign", spent=dict(spent.seconds))
    service.observe("signing", key)
    return "signing"


def _with_end(known: Attempts, result: Unsigned | Refusal | Died, spent: Spent) -> Attempts:
    deaths = (*known.deaths, result.cause) if isinstance(result, Died) else known.deaths
    return structs.replace(known, ended=known.ended + 1, deaths=deaths, spent=dict(spent.seconds))
