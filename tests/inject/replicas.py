"""Replicas as processes of this machine, each with a gateway that keeps one set of swap groups.

The gateways are handmade servers (https_gateway.py) around the real groups' code: each rank has its
own, so that a test can give one rank slow kernels or take its gateway away.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stitch_operator.gateway import groups
from tests import lean, waiting
from tests.inject import https_gateway as gateways
from tests.inject import jobs
from tests.inject.handmade_gateway import HandmadeGateway
from tests.inject.https_gateway import Asked, Reply
from tests.ports import free_port
from tests.waiting import RUN_SECONDS

GONE = Reply(503, b"{}", {"Retry-After": "1"})


@dataclass
class Groups:
    """What a gateway's ledger and its answers are to `acknowledged` (gateway/reports.py)."""

    rounds: dict[tuple[str, int], groups.Group] = field(default_factory=dict)
    words: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, said: Mapping[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.words.append(dict(said))
            about = (said["session"], said["key"], said["size"], said["rank"], said["step"])
            word = groups.Acknowledgement(*about, said.get("confirm"), said["margin"])
            name, number = said["group"], said["round"]
            group = groups.acknowledge(self.rounds.get((name, number)), word, time.time())
            self.rounds[name, number] = group
            latest = max(other for known, other in self.rounds if known == name)
        state = {"state": group.state, "reason": group.reason, "latest_round": latest}
        answer: dict[str, Any] = {"status": "noted", "group": {**state, "round": number}}
        return answer | ({"swap_at": group.step} if group.step else {})

    def state(self, number: int) -> str:
        """Of the only group's round; "" before it began."""
        with self.lock:
            found = [one.state for (_, other), one in self.rounds.items() if other == number]
        return found[0] if found else ""


Fault = Callable[[Asked, int], Reply | None]


@dataclass(frozen=True)
class Line:
    """What a replica prints after a step."""

    loss: float
    checksum: str


@dataclass
class Rank:
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    cache: Path

    def lines(self) -> list[Line]:
        """Of the steps so far, whole lines only."""
        text = self.out.read_text().rpartition("\n")[0]
        rows = [line.split() for line in text.splitlines()]
        assert [int(row[0]) for row in rows] == list(range(len(rows)))
        return [Line(float(row[1]), row[2]) for row in rows]

    def events(self) -> list[dict[str, Any]]:
        path = self.cache / "sessions" / "s" / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def event(self, kind: str, **wanted: Any) -> dict[str, Any]:
        for one in self.events():
            if one["type"] == kind and all(one.get(k) == v for k, v in wanted.items()):
                return one
        raise AssertionError(f"no {kind} {wanted}: {self.events()} {self.err.read_text()[-2000:]}")


@contextmanager
def processes(
    folder: Path, environments: list[Mapping[str, str]], *arguments: object
) -> Iterator[list[Rank]]:
    """Replicas of scripts/replicas.py, one for each environment; killed at the end."""
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in environments]}
    started: list[Rank] = []
    try:
        for rank, extra in enumerate(environments):
            own = folder / f"rank{rank}"
            own.mkdir(parents=True, exist_ok=True)
            task = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
            script = str(jobs.SCRIPTS / "replicas.py")
            environment = lean.environment(**extra, TF_CONFIG=json.dumps(task))
            out, err = own / "out", own / "err"
            with out.open("wb") as stdout, err.open("wb") as stderr:
                process = subprocess.Popen(
                    [jobs.python_of("2.21"), script, *map(str, arguments)],
                    env=environment,
                    stdout=stdout,
                    stderr=stderr,
                )
            started.append(Rank(process, out, err, Path(extra.get("STITCH_STORE", own))))
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()


@contextmanager
def ranks(
    folder: Path,
    key_file: Path,
    public_key: str,
    behaviours: list[str],
    *arguments: object,
    fault: Fault = lambda asked, rank: None,
) -> Iterator[tuple[list[Rank], Groups]]:
    """Replicas under the hook, one for each behaviour of kernels (handmade.py). `fault` may answer
    a call of a rank in its gateway's stead."""
    known = Groups()
    environments: list[Mapping[str, str]] = []
    with ExitStack() as stack:
        for rank, behaviour in enumerate(behaviours):
            own = folder / f"rank{rank}"
            own.mkdir(parents=True)
            answers = HandmadeGateway(own / "store", key_file, behaviour)
            answer = _answer(answers, known, fault, rank)
            server = stack.enter_context(gateways.serve(own / "g", answer))
            known_to_job = server.settings(
                STITCH_PUBLIC_KEYS=public_key,
                STITCH_STORE=str(own / "cache"),
                STITCH_SESSION="s",
                PYTHONPATH=str(jobs.BOOTSTRAP),
            )
            environments.append(known_to_job)
        yield stack.enter_context(processes(folder, environments, *arguments)), known


def _answer(answers: HandmadeGateway, known: Groups, fault: Fault, rank: int) -> gateways.Answer:
    def answer(asked: Asked) -> Reply:
        made = fault(asked, rank)
        if made is not None:
            return made
        if asked.document.get("type") == "acknowledged":
            return gateways.reply(200, known.say(asked.document))
        return answers(asked)

    return answer


def finished(started: list[Rank]) -> list[list[Line]]:
    """What each printed, once all have ended well."""
    for one in started:
        assert one.process.wait(RUN_SECONDS) == 0, one.err.read_text()[-3000:]
    return [one.lines() for one in started]


def same_variables(started: list[Rank]) -> int:
    """Asserts that checksums are equal in every step that all have printed; how many steps."""
    lines = [[one.checksum for one in rank.lines()] for rank in started]
    common = min(map(len, lines))
    assert all(one[:common] == lines[0][:common] for one in lines)
    return common


def wait_for(done: Callable[[], bool], started: list[Rank]) -> None:
    """Raises AssertionError when it takes too long, or a replica has ended."""

    def there() -> bool:
        assert all(rank.process.poll() is None for rank in started)
        return done()

    waiting.wait_for(there, lambda: [rank.err.read_text()[-2000:] for rank in started])
