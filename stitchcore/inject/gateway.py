"""The source that is a gateway: graphs go out, artifacts come in, reports follow.

One daemon thread does all of it. The job's own threads only put things into memory and read them
from there, so a gateway that is dead, slow or lying costs a job nothing: every request has a
deadline and a size limit (wire.py), every failure is a counted reason, and the original steps go
on. What arrives is verified here, before it is kept (cache.py) and before anyone may load it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import random
import re
import tarfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Callable, Deque, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple

from . import (
    cache,
    client,
    contract,
    reasons,
    report,
    settings,
    swap_group,
    swap_group_messages,
    wire,
)

REQUEST_SECONDS = 20.0
ARTIFACT_SECONDS = 300.0
ANSWER_BYTES = 2**20
PATIENCE_SECONDS = 60.0  # a service mesh's proxy may start after the job
QUICK_SECONDS, SLOW_SECONDS = 5.0, 300.0  # longest pauses between tries: while patient, and later
EXIT_SECONDS = 3.0  # what the last reports may add to the end of a job
REASON = re.compile(r"[a-z_]{1,40}")
ETAG, ETAG_VALUE = "etag", re.compile(r'(W/)?"[\x21\x23-\x7e]*"')  # RFC 9110, section 8.8.3
ALIVE_SECONDS = 15.0  # between words of a swap that is not settled yet
SETTLED = frozenset(("swap_ok", "rolled_back", "disabled", "crashed_before"))
NAMED = 64  # artifacts that a request names as running
FILES = 258  # of an artifact: a manifest, its signature, libraries
Complain = Callable[[str, str, str], None]  # (digest or "", reason, detail)


@dataclass
class Request:
    """A graph that was handed in. `due` and `since` are readings of the monotonic clock."""

    digest: str
    graph: bytes
    meta: Mapping[str, Any]
    since: float
    due: float
    key: str = ""  # of the request, as the gateway calls it
    attempts: int = 0  # failures in a row
    answer: Optional[Dict[str, Any]] = None
    artifact: Optional[client.Artifact] = None
    cached: Optional[client.Artifact] = None  # of an earlier process, verified
    etag: str = ""  # under which that one was served

    @property
    def settled(self) -> bool:
        return self.answer is not None and self.answer["status"] != "pending"


@dataclass
class Swap:
    """A swap to `key` that the gateway is told of before it begins, and again while it is young: a
    workload's next pod must know that this one died of it. `begun` once that is on record;
    `crashed` where another one had died of it. `due` by the monotonic clock."""

    digest: str
    key: str
    due: float
    begun: bool = False
    crashed: bool = False
    failures: int = 0


@dataclass
class Contact:
    """Whether the gateway has been reached. Failures are said once they have lasted."""

    since: float
    reached: bool = False
    failure: Optional[reasons.Refused] = None
    said: Set[str] = field(default_factory=set)


def body_of(request: Request, session: str, waits: bool) -> bytes:
    """The gzipped body of a submission; `preserve` and the rest as the worker reads them. The
    session begins with it: what the job claims to have saved is bounded by the time since. A job
    that waits for the answer goes before those of its namespace that run meanwhile."""
    graph = base64.b64encode(request.graph).decode()
    document = {**request.meta, "graph": graph, "session": session}
    if waits:
        document["waits"] = True
    return gzip.compress(json.dumps(document).encode(), 6)


def unpack(data: bytes) -> client.Read:
    """Reads files of an artifact from a tar: flat, plain, each named once, of which none is copied
    before it is asked for: who verifies asks for the rest when the signature holds. Headers that
    say what stands elsewhere (sparse files, long names, pax) are no files of an artifact, so what
    is read is never more than what was sent. Raises Refused."""
    places: Dict[str, Tuple[int, int]] = {}
    position = 0
    try:
        while data[position : position + tarfile.BLOCKSIZE].strip(b"\0"):
            block = data[position : position + tarfile.BLOCKSIZE]
            member = tarfile.TarInfo.frombuf(block, "ascii", "strict")
            begin = position + tarfile.BLOCKSIZE
            end = begin + member.size
            plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.size >= 0
            known = member.name in places or len(places) >= FILES
            if not plain or known or not contract.FILE_NAME.fullmatch(member.name):
                raise reasons.Refused(reasons.BAD_ARTIFACT, "its tar holds something else")
            if end > len(data):
                raise reasons.Refused(reasons.BAD_ARTIFACT, "its tar is cut short")
            places[member.name] = (begin, end)
            position = end + -end % tarfile.BLOCKSIZE
    except (tarfile.TarError, ValueError) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"its tar cannot be read: {error}") from error

    def read(name: str, limit: int) -> bytes:
        begin, end = places.get(name, (0, limit + 1))
        if end - begin > limit:
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"{name} is missing or too large")
        return data[begin:end]

    return read


def _word(value: Any) -> str:
    """A reason that the gateway gave, fit to be printed."""
    text = str(value)
    return text if REASON.fullmatch(text) else reasons.GATEWAY_ERROR


def pause(attempts: int, patient: bool, draw: float) -> float:
    """Seconds until the next try after `attempts` failures in a row: doubled each time, bounded,
    and spread by `draw` of [0, 1) over half to all of it, so that a thousand jobs that lost one
    gateway do not come back in step."""
    longest = QUICK_SECONDS if patient else SLOW_SECONDS
    return float(min(0.5 * 2 ** min(attempts, 20), longest) * (0.5 + 0.5 * draw))


def wait_of(text: Any, draw: float) -> float:
    """Seconds that an answer asks to wait, within bounds, and spread as above."""
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = 1.0
    bounded = min(max(seconds, 0.2), 60.0) if seconds == seconds else 1.0
    return bounded * (1.0 + 0.25 * draw)


class Gateway:
    """A client.Source. `start` starts its thread, `finish` ends it."""

    def __init__(
        self,
        config: settings.Settings,
        endpoint: wire.Endpoint,
        expected: client.Expected,
        complain: Complain,
    ) -> None:
        self._config = config
        self._endpoint = endpoint
        self._expected = expected
        self._complain = complain
        self._requests: Dict[str, Request] = {}
        self._revoked: FrozenSet[str] = frozenset()
        self._running: Deque[str] = deque()  # keys of artifacts that were accepted
        self._announced: FrozenSet[str] = frozenset()  # public keys that are valid by the gateway
        self._random = random.Random(os.urandom(16))  # the job's own generator is left alone
        self._contact = Contact(time.monotonic())
        self._outbox = report.Outbox(self._random.getrandbits(64))
        self._reports_due, self._report_failures = 0.0, 0
        self._swaps: Dict[str, Swap] = {}
        self._messages = swap_group_messages.Messages()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended, self._drained = False, threading.Event()

    # Called by the job's threads: memory only.

    def submit(self, digest: str, graph: bytes, meta: Mapping[str, Any]) -> None:
        now = time.monotonic()
        with self._lock:
            self._requests.setdefault(digest, Request(digest, graph, meta, now, now))
        self._wake.set()

    def answer(self, digest: str) -> Optional[Dict[str, Any]]:
        request = self._requests.get(digest)
        return request.answer if request is not None else None

    def fetch(self, key: str, digest: str, target: str) -> client.Artifact:
        known = self._requests.get(digest)
        if known is None or known.artifact is None or known.artifact.key != key:
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"artifact {key[:12]} was not fetched")
        artifact, known.artifact = known.artifact, None  # its bytes are not needed twice
        return artifact

    def revoked(self, key: str) -> bool:
        return key in self._revoked

    def begun(self, digest: str, key: str) -> bool:
        """Of a process that reports nothing nobody keeps a record."""
        if not self._config.reports:
            return True
        with self._lock:
            swap = self._swaps.setdefault(key, Swap(digest, key, time.monotonic()))
        if swap.crashed:
            raise reasons.Refused(reasons.CRASHED_BEFORE, f"artifact {key[:12]}: in another pod")
        if not swap.begun:
            self._wake.set()
        return swap.begun

    def observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Takes in an event of the job (client.Events)."""
        if kind in SETTLED and fields.get("key") in self._swaps:
            self._swaps[str(fields["key"])].due = math.inf  # told by the event itself
        if self._config.reports and self._outbox.add(kind, fields):
            self._wake.set()

    def say(self, fields: Mapping[str, Any], every: float) -> None:
        if self._messages.put(fields, every):
            self._wake.set()

    def heard(self, name: str) -> Optional[swap_group.Heard]:
        return self._messages.heard(name)

    def quiet(self, name: str) -> None:
        self._messages.end(name)

    def start(self) -> None:
        threading.Thread(target=self._run, name="stitch-gateway", daemon=True).start()

    def finish(self) -> None:
        """Sends what is left, for EXIT_SECONDS at most; at once where nobody answered before."""
        for swap in self._swaps.values():  # an orderly end is no crash
            if swap.begun and swap.due < math.inf:
                self.observe("swap_ok", {"digest": swap.digest, "key": swap.key})
        self._ended = True
        self._wake.set()
        if self._contact.reached and self._contact.failure is None:
            self._drained.wait(EXIT_SECONDS)
        elif self._contact.failure is not None:
            self._say(self._contact.failure)

    # The thread

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                delay = self._turn()
            except Exception as error:
                self._complain("", reasons.HOOK_ERROR, f"{type(error).__name__}: {error}")
                break
            if self._ended:
                break
            self._wake.wait(delay)
        self._drained.set()

    def _turn(self) -> float:
        """Does what is due; returns the seconds until something else is."""
        for request in self._open():
            if request.due <= time.monotonic() and not self._ended:
                self._ask(request)
        self._speak()
        self._report()
        self._record_swaps()
        now = time.monotonic()
        due = [request.due - now for request in self._open()]
        with self._lock:
            due += [swap.due - now for swap in self._swaps.values()]
        spoken = self._messages.due()
        if spoken is not None:
            due.append(spoken - now)
        if self._outbox.waiting:
            due.append(self._reports_due - now)
        return max(0.01, min([*due, 3600.0]))

    def _open(self) -> List[Request]:
        """Graphs without a final answer; the job's threads may add to them meanwhile."""
        with self._lock:
            return [request for request in self._requests.values() if not request.settled]

    def _call(
        self,
        method: str,
        path: str,
        body: Optional[bytes],
        limit: int,
        extra: Optional[Mapping[str, str]] = None,
    ) -> wire.Response:
        headers = {"Accept": "application/json, application/x-tar", **(extra or {})}
        headers["Stitch-Running"] = ",".join(islice(self._running, NAMED))
        self._running.rotate(-NAMED)  # all of them in the end
        if body is not None:
            headers.update({"Content-Type": "application/json", "Content-Encoding": "gzip"})
        seconds = ARTIFACT_SECONDS if limit > ANSWER_BYTES else REQUEST_SECONDS
        if self._ended:
            seconds = EXIT_SECONDS
        answer = wire.request(self._endpoint, method, path, body, headers, seconds, limit)
        if answer.status in (401, 403):
            raise reasons.Refused(reasons.GATEWAY_DENIED, f"status {answer.status}")
        self._contact.reached, self._contact.failure = True, None
        return answer

    def _document(self, answer: wire.Response) -> Dict[str, Any]:
        """The JSON object of an answer; notes what is revoked. Raises Refused(GATEWAY_ERROR)."""
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            detail = f"status {answer.status} without a JSON object"
            raise reasons.Refused(reasons.GATEWAY_ERROR, detail)
        revoked = document.get("revoked")
        if isinstance(revoked, list):  # of those that were named: what was heard before still holds
            self._revoked |= {key for key in revoked if isinstance(key, str)}
        trust = document.get("trust")
        keys = trust.get("public_keys") if isinstance(trust, dict) else None
        if isinstance(keys, list):
            self._announced = frozenset(key for key in keys if isinstance(key, str))
        return document

    # Graphs

    def _ask(self, request: Request) -> None:
        try:
            if not request.key:
                body = body_of(request, self._outbox.session, self._config.wait > 0)
                answer = self._call("POST", "/v1/graphs", body, ANSWER_BYTES)
            else:
                limit = int(cache.SHARE * self._config.cache_limit)
                limit = min(contract.MAXIMUM_ARTIFACT_BYTES, limit)
                request.cached = request.cached or self._cached(request)
                known = {"If-None-Match": request.etag} if request.cached else {}
                answer = self._call("GET", f"/v1/artifacts/{request.key}", None, limit, known)
            self._understand(request, answer)
            request.attempts = 0
        except reasons.Refused as error:
            self._failed(request, error)

    def _understand(self, request: Request, answer: wire.Response) -> None:
        draw = self._random.random()
        if request.key and answer.status == 304 and request.cached is not None:
            self._accept(request, request.cached)
        elif request.key and answer.status == 200:
            self._take(request, answer.body, answer.headers.get("etag", ""))
        elif request.key and answer.status == 404:  # it has lost everything: ask anew
            request.key, request.due = "", time.monotonic() + wait_of(None, draw)
        elif answer.status in (200, 202):
            document = self._document(answer)
            key = document.get("key")
            if not isinstance(key, str) or not client.KEY.match(key):
                raise reasons.Refused(reasons.GATEWAY_ERROR, "an answer without a key")
            request.key = key
            request.answer = {**document, "status": "pending"}
            wait = 0.0 if answer.status == 200 else wait_of(document.get("retry_after"), draw)
            request.due = time.monotonic() + wait
        elif answer.status in (409, 410, 413):
            document = self._document(answer)
            if document.get("retry_after") is not None:  # refused for now
                request.due = time.monotonic() + wait_of(document["retry_after"], draw)
                reason = _word(document.get("reason"))
                self._complain(request.digest, reason, str(document.get("detail") or ""))
            else:
                detail = document.get("detail") or document.get("what") or ""
                self._refuse(request, _word(document.get("reason")), str(detail))
        elif answer.status in (429, 503):
            request.due = time.monotonic() + wait_of(answer.headers.get("retry-after"), draw)
        else:
            raise reasons.Refused(reasons.GATEWAY_ERROR, f"status {answer.status}")

    def _expects(self, request: Request) -> client.Expected:
        """Signed by a key that the job was given and that is valid: one that leaked is announced no
        longer. Without an announcement those that the job was given are all there is."""
        expected = self._expected.on(str(request.meta["target"]))
        valid = [key for key in expected.public_keys if key.hex() in self._announced]
        return replace(expected, public_keys=tuple(valid)) if self._announced else expected

    def _cached(self, request: Request) -> Optional[client.Artifact]:
        """What an earlier process kept; removed when it does not hold (any more)."""
        folder = cache.folder(self._config.store, request.digest)
        if not cache.touch(folder):
            return None
        read = client.reader(folder)
        try:
            request.etag = read(ETAG, 128).decode("ascii", "replace")
            artifact = client.verified(read, request.digest, self._expects(request))
        except reasons.Refused as error:
            cache.forget(folder)
            detail = f"kept by an earlier process: {error.detail}"
            self._complain(request.digest, error.reason, detail)
            return None
        return artifact if ETAG_VALUE.fullmatch(request.etag) else None

    def _take(self, request: Request, data: bytes, etag: str) -> None:
        """Verifies an artifact and keeps it; a bad one is the final answer to this graph."""
        try:
            files: Dict[str, bytes] = {}
            tar = unpack(data)

            def read(name: str, limit: int) -> bytes:
                files[name] = tar(name, limit)
                return files[name]

            artifact = client.verified(read, request.digest, self._expects(request))
        except reasons.Refused as error:
            self._refuse(request, error.reason, error.detail)
            return
        try:
            folder = cache.folder(self._config.store, request.digest)
            stored = {**files, ETAG: etag[:128].encode("ascii", "replace")}
            cache.keep(self._config.store, folder, stored, self._config.cache_limit)
        except reasons.Refused as error:  # the job has it in memory: only the next start pays
            self._complain(request.digest, error.reason, error.detail)
        self._accept(request, artifact)

    def _accept(self, request: Request, artifact: client.Artifact) -> None:
        if self.revoked(artifact.key):
            self._refuse(request, reasons.REVOKED, f"artifact {artifact.key[:12]}")
            return
        request.graph, request.cached, request.artifact = b"", None, artifact
        if artifact.key not in self._running:
            self._running.append(artifact.key)
        request.answer = {"status": "ready", "key": artifact.key}

    def _refuse(self, request: Request, reason: str, detail: str) -> None:
        request.graph = b""
        request.answer = {"status": "refused", "reason": reason, "detail": detail}

    def _failed(self, request: Request, error: reasons.Refused) -> None:
        request.attempts += 1
        now = time.monotonic()
        patient = now - request.since < PATIENCE_SECONDS
        request.due = now + pause(request.attempts, patient, self._random.random())
        self._contact.failure = error
        if not patient:
            self._say(error)

    # Swap groups

    def _speak(self) -> None:
        """Says what is due to the process's swap groups."""
        while not self._ended:
            said = self._messages.first(time.monotonic())
            if said is None:
                return
            try:
                document = {**self._outbox.numbered(), **said[1], "type": "acknowledged"}
                body = gzip.compress(json.dumps(document).encode())
                answer = self._call("POST", report.EVENTS, body, ANSWER_BYTES)
                if answer.status in (429, 503):
                    wait = wait_of(answer.headers.get("retry-after"), self._random.random())
                    self._messages.later(said[0], time.monotonic() + wait)
                elif answer.status != 200:
                    raise reasons.Refused(reasons.GATEWAY_ERROR, f"status {answer.status}")
                else:
                    self._messages.answered(*said, self._document(answer))
            except reasons.Refused as error:  # said again when it is due
                self._contact.failure = error

    # Swaps

    def _record_swaps(self) -> None:
        """Asks whether swaps may begin, and says again that they live."""
        with self._lock:
            swaps = list(self._swaps.values())
        for swap in swaps:
            if swap.due > time.monotonic() or self._ended:
                continue
            document = {**self._outbox.numbered(), "type": "may-swap"}
            document.update(graph=swap.digest, key=swap.key)
            try:
                body = gzip.compress(json.dumps(document).encode())
                answer = self._call("POST", report.EVENTS, body, ANSWER_BYTES)
                self._recorded(swap, answer)
                swap.failures = 0
            except reasons.Refused as error:
                self._contact.failure = error
                swap.failures += 1
                wait = pause(swap.failures, True, self._random.random())
                swap.due = time.monotonic() + wait

    def _recorded(self, swap: Swap, answer: wire.Response) -> None:
        draw = self._random.random()
        if answer.status in (429, 503):
            swap.due = time.monotonic() + wait_of(answer.headers.get("retry-after"), draw)
        elif answer.status == 400:  # a gateway of the release before
            swap.begun, swap.due = True, math.inf
        elif answer.status != 200:
            raise reasons.Refused(reasons.GATEWAY_ERROR, f"status {answer.status}")
        else:
            document = self._document(answer)
            if document.get("status") == "wait":
                swap.due = time.monotonic() + wait_of(document.get("retry_after"), draw)
            else:
                swap.crashed = document.get("status") == "crashed"
                swap.begun = not swap.crashed
                if swap.due < math.inf:  # else it was settled meanwhile
                    again = math.inf if swap.crashed else time.monotonic() + ALIVE_SECONDS
                    swap.due = again

    # Reports

    def _report(self) -> None:
        """Sends what waits, until it is all sent or something fails."""
        while time.monotonic() >= self._reports_due or self._ended:
            report_ = self._outbox.first()
            if report_ is None:
                return
            try:
                body = gzip.compress(json.dumps(report_.document).encode())
                answer = self._call("POST", report_.path, body, ANSWER_BYTES)
                if answer.status in (429, 503):
                    self._later(wait_of(answer.headers.get("retry-after"), self._random.random()))
                    return
                self._outbox.sent(report_)
                self._report_failures = 0
                if answer.status >= 400:  # it will never take this one
                    self._untaken(report_, answer)
                elif answer.body:
                    self._document(answer)
            except reasons.Refused as error:
                self._contact.failure = error
                self._report_failures += 1
                self._later(pause(self._report_failures, False, self._random.random()))
                return

    def _untaken(self, report_: report.Report, answer: wire.Response) -> None:
        about, detail = str(report_.document["graph"]), f"{report_.path}: status {answer.status}"
        if answer.status == 422:
            self._complain(about, reasons.IMPLAUSIBLE, str(self._document(answer).get("what")))
        else:
            self._complain(about, reasons.GATEWAY_ERROR, detail)

    def _later(self, seconds: float) -> None:
        self._reports_due = time.monotonic() + seconds
        if self._ended:
            self._outbox.close()  # there is no later

    def _say(self, error: reasons.Refused) -> None:
        if error.reason not in self._contact.said:
            self._contact.said.add(error.reason)
            self._complain("", error.reason, error.detail)


def source(
    config: settings.Settings, expected: client.Expected, complain: Complain
) -> client.Source:
    """The source that the settings name."""
    if config.gateway is None:
        return client.Folder(config.store, expected)
    return Gateway(config, config.gateway, expected, complain)
