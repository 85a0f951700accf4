"""Bodies are bounded while they stream, rates by a clock, decisions by a table: pure cores."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_operator.gateway import body, digests, graph_size
from stitch_operator.gateway.body import Limits
from stitch_operator.gateway.limits import Buckets, Held, Level, Rate, take
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.records import SubmitGraph, decode
from stitch_operator.gateway.sharing import Sharing, Sum
from stitch_operator.gateway.standing import (
    NO_WORKER_SECONDS,
    OTHER_CODE_SECONDS,
    SILENT_SECONDS,
    STARTING_SECONDS,
    Next,
    Situation,
    decide,
    tell,
)
from stitch_operator.gateway.wire import MESSAGES

NOW = 1_000_000.0


def free(size: int) -> None:
    """A charge that refuses nothing."""


def read(
    data: bytes,
    encoding: str,
    limits: Limits,
    chunk: int = 1000,
    charge: Callable[[int], None] = free,
) -> bytes:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), chunk):
            yield data[start : start + chunk]

    return asyncio.run(body.read(chunks(), encoding, limits, charge))


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_bodies_within_limits_are_themselves(data: bytes, chunk: int) -> None:
    limits = Limits(10_000, 10_000)
    assert read(data, "", limits, chunk) == data
    assert read(gzip.compress(data), "gzip", limits, chunk) == data


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_all_of_a_body_is_charged_in_pieces(encoding: str, size: int) -> None:
    charged: list[int] = []
    sent = gzip.compress(bytes(size)) if encoding else bytes(size)
    limits = Limits(2**30, 2**30, ratio=10**6)
    assert read(sent, encoding, limits, charge=charged.append) == bytes(size)
    assert sum(charged) == size
    assert max(charged, default=0) <= body.PIECE


def test_what_is_refused_is_not_kept_while_the_answer_is_given() -> None:
    """The rest of a refused body is read on before the answer, and its sender may take long."""
    sent = gzip.compress(bytes(2**26))
    left = [2**25]

    def charge(size: int) -> None:
        left[0] -= size
        if left[0] < 0:
            raise Rejected(Problem.UNAVAILABLE, "spent")

    tracemalloc.start()
    try:
        with pytest.raises(Rejected) as caught:
            read(sent, "gzip", Limits(2**30, 2**30, ratio=10**6), len(sent), charge)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.problem is Problem.UNAVAILABLE
    assert most < 2**26, "stopped where it was refused"
    assert kept < 2**23


SIZE = 2**24
SMALL = b'{"target": "cpu", "tf": "2.21.0", "graph": '


def of_protobuf(number: int, content: bytes) -> bytes:
    """One field of bytes, of at most 127."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("json", b'{"x": [' + b"[]," * (SIZE // 3) + b"[]]}"),
        ("json", SMALL + b"[" + b"[]," * (SIZE // 3) + b"[]]}"),
        ("json", SMALL + b'"AA==", "preserve": [' + b'"",' * (SIZE // 3) + b'""]}'),
        (
            "json",
            SMALL
            + b'"AA==", "graph": "AA==", "\\u0067raph": {'
            + b'"":1,' * (SIZE // 5)
            + b'"":1}}',
        ),
        ("json", b"[" + b"{}," * (SIZE // 3) + b"{}]"),
        ("x-protobuf", of_protobuf(8, b"g") + of_protobuf(5, b"") * (SIZE // 2)),
        ("x-protobuf", of_protobuf(8, b"g" * 127) * (SIZE // 129)),
    ],
    ids=["unknown", "no text", "preserve", "twice", "no record", "names", "many graphs"],
)
def test_little_is_made_of_what_is_large_beside_its_graph(kind: str, data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Rejected) as caught:
            decode(data, f"application/{kind}", SubmitGraph)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.problem in (Problem.TOO_LARGE, Problem.BAD_REQUEST)
    assert most <= SIZE // 8


@pytest.mark.parametrize("kind", ["json", "x-protobuf"])
def test_a_large_graph_is_read_with_what_stands_beside_it(kind: str) -> None:
    names = [f"name_{number}" for number in range(1000)]
    graph = random.Random(0).randbytes(SIZE)
    fields = {"target": "cpu", "tf": "2.21.0", "preserve": names}
    if kind == "json":
        text = base64.b64encode(graph).decode()
        data = json.dumps({"graph": text, "later": {"x": [1]}, **fields}).encode()
    else:
        data = MESSAGES["SubmitGraph"](graph=graph, **fields).SerializeToString()
    read = decode(data, f"application/{kind}", SubmitGraph)
    assert (read.graph, read.preserve) == (graph, names)


def test_a_name_holds_half_and_all_of_them_the_whole() -> None:
    held = Held(100)
    with held.holding("a") as a:
        a(30)
        with held.holding("a") as again, held.holding("b") as b, held.holding("c") as c:
            again(20)
            with pytest.raises(Rejected) as caught:
                a(1)
            assert caught.value.problem is Problem.RATE_LIMITED
            b(40)
            c(10)
            with pytest.raises(Rejected) as caught:
                c(1)
            assert caught.value.problem is Problem.UNAVAILABLE
        a(20)
    with held.holding("a") as a, held.holding("b") as b:
        a(50)
        b(50)


def test_a_bomb_is_stopped_before_it_unpacks(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(300 * 2**20), 9)
    assert len(bomb) < 400_000
    most = 0
    real = zlib.decompressobj

    class Counting:
        """How much was unpacked in all."""

        def __init__(self, bits: int) -> None:
            self.inner = real(bits)
            self.eof, self.unused_data, self.unconsumed_tail = False, b"", b""

        def decompress(self, chunk: bytes, limit: int) -> bytes:
            nonlocal most
            out = self.inner.decompress(chunk, limit)
            self.unconsumed_tail = self.inner.unconsumed_tail
            most += len(out)
            return out

    monkeypatch.setattr(body.zlib, "decompressobj", Counting)
    for limits in (Limits(2**20, 2**30, ratio=200), Limits(2**20, 5 * 2**20, ratio=10**6)):
        most = 0
        with pytest.raises(Rejected) as caught:
            read(bomb, "gzip", limits)
        assert caught.value.problem is Problem.TOO_LARGE
        assert most <= 6 * 2**20


@pytest.mark.parametrize(
    ("data", "encoding", "problem"),
    [
        (b"x" * 2001, "", Problem.TOO_LARGE),
        (b"not gzip", "gzip", Problem.BAD_REQUEST),
        (gzip.compress(b"cut short")[:-3], "gzip", Problem.BAD_REQUEST),
        (gzip.compress(b"one") + b"more", "gzip", Problem.BAD_REQUEST),
        (b"", "gzip", Problem.BAD_REQUEST),
        (b"x", "br", Problem.UNSUPPORTED_MEDIA_TYPE),
    ],
    ids=["too large", "not gzip", "cut short", "more behind", "empty", "unknown encoding"],
)
def test_bad_bodies_are_told_apart(data: bytes, encoding: str, problem: Problem) -> None:
    with pytest.raises(Rejected) as caught:
        read(data, encoding, Limits(2000, 2000))
    assert caught.value.problem is problem


@pytest.mark.parametrize(
    ("functions", "nodes", "inputs", "served"),
    [
        (1, 7, 1, True),  # with the graph's node and the function itself: nine
        (1, 9, 1, False),
        (9, 0, 0, False),
        (1, 1, 60, False),
    ],
)
def test_what_stands_in_functions_counts(
    functions: int, nodes: int, inputs: int, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_size, "MOST_NODES", 9)
    monkeypatch.setattr(graph_size, "MOST_INPUTS", 50)
    graph = MESSAGES["GraphDef"]()
    graph.node.add(name="n", op="NoOp")
    for number in range(functions):
        function = graph.library.function.add()
        function.signature.name = f"f{number}"
        function.signature.input_arg.add(name="x")
        for node in range(nodes):
            function.node_def.add(name=f"n{node}", op="NoOp").input.extend(["x"] * inputs)
    found = digests.canonical(graph.SerializeToString(), [])
    assert isinstance(found, digests.Canonical) is served
    assert served or "are served" in found.what


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 3)), max_size=50),
    st.floats(0.5, 4),
    st.floats(1, 5),
    st.floats(0, 5),
)
def test_no_more_than_the_rate_passes(
    calls: list[tuple[float, float]], per_second: float, burst: float, debt: float
) -> None:
    level: Level | None = None
    now = passed = 0.0
    for pause, amount in calls:
        now += pause
        level, wait = take(level, Rate(per_second, burst), amount, now, debt)
        passed += amount if wait == 0 else 0.0
        assert passed <= burst + debt + per_second * now + 1e-6
        if wait and amount <= burst:  # waiting so long is enough
            assert take(level, Rate(per_second, burst), amount, now + wait + 1e-6)[1] == 0


def at(**given: Any) -> Situation:
    """A request that a worker of the same code could serve, never enqueued."""
    fields = {"answer": None, "published": False, "enqueued": None, "waiting": 0, "served": True}
    return Situation(**{**fields, "code": "own", "since": 0.0, "now": NOW, **given})


def pending(age: float) -> dict[str, Any]:
    return {"status": "pending", "time": NOW - age, "stage": "plan", "done": 1, "total": 4}


REFUSED = {"status": "refused", "reason": "slower", "code": "own", "time": NOW - 5000}
OTHERS = {**REFUSED, "code": "other"}
LONG = NOW - 10 * OTHER_CODE_SECONDS


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (at(), Next.ENQUEUE),
        (at(enqueued=NOW - 1), Next.WAIT),
        (at(enqueued=NOW - SILENT_SECONDS - 1), Next.ENQUEUE),  # the broker lost it
        (at(enqueued=NOW - SILENT_SECONDS - 1, waiting=3), Next.WAIT),  # it stands in line
        (at(answer=pending(1), enqueued=LONG), Next.WAIT),
        (at(answer=pending(SILENT_SECONDS - 1), enqueued=LONG), Next.WAIT),
        (at(answer=pending(SILENT_SECONDS + 1), enqueued=LONG), Next.ENQUEUE),
        (at(answer={"status": "pending"}, enqueued=LONG), Next.ENQUEUE),  # without a heartbeat
        (at(answer={"status": "ready", "key": "k"}, published=True), Next.READY),
        (at(answer={"status": "ready", "key": "k"}, enqueued=LONG, waiting=9), Next.ENQUEUE),
        (at(answer=REFUSED), Next.REFUSED),
        (at(answer=REFUSED, served=False), Next.REFUSED),
        (at(answer=OTHERS, enqueued=LONG), Next.ENQUEUE),
        (at(answer=OTHERS, enqueued=NOW - SILENT_SECONDS - 1), Next.ENQUEUE),
        (at(answer={**OTHERS, "time": NOW - 2}, enqueued=NOW - 70), Next.REFUSED),
        (at(answer={**OTHERS, "time": NOW - 73}, enqueued=NOW - 70), Next.REFUSED),  # clocks differ
        (at(served=False), Next.NO_WORKER),
        (at(served=False, since=NOW - STARTING_SECONDS + 1), Next.WAIT),
        (at(served=False, answer=pending(1)), Next.WAIT),
        (at(served=False, answer={"status": "ready", "key": "k"}, published=True), Next.READY),
    ],
)
def test_what_is_done_about_a_request(situation: Situation, expected: Next) -> None:
    assert decide(situation) is expected


def test_what_is_told_of_it() -> None:
    progress = tell("r", Next.WAIT, pending(1), "q").document()
    assert (progress["stage"], progress["done"], progress["total"]) == ("plan", 1, 4)
    again = tell("r", Next.ENQUEUE, pending(100), "q").document()
    assert (again["stage"], again["done"]) == ("queued", 0)  # its worker is gone
    nobody = tell("r", Next.NO_WORKER, None, "q")
    assert (nobody.http_status, nobody.retry_after) == (409, NO_WORKER_SECONDS)
    assert json.dumps(nobody.document())


# ---- rates of several gateways -------------------------------------------------------------------
RATE = Rate(1.0, 10.0)


class Ledger:
    """What gateways have written, as the real one has it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, tuple[str, str]], Sum] = {}

    def round(self, one: Sharing, now: float, away: bool = False) -> None:
        news = one.news()
        if not away:
            self.rows |= {(one.name, about): value for about, value in news.items()}
            others = {about: value for about, value in self.rows.items() if about[0] != one.name}
            one.hear(news, others, now)


def sharing() -> Sharing:
    return Sharing({"calls": Buckets(RATE)})


def let_through(one: Sharing, tries: int, now: float) -> int:
    return sum(not one.buckets["calls"].take("team", 1, now) for _ in range(tries))


@given(st.integers(2, 4), st.lists(st.integers(0, 3), min_size=30, max_size=60))
def test_gateways_let_no_more_through_than_one_would(many: int, order: list[int]) -> None:
    """Each second one is asked as often as it likes; then all tell and hear. A burst of each goes
    beyond what one would let through, and no more, however long it lasts."""
    ledger, gateways = Ledger(), [sharing() for _ in range(many)]
    passed = 0
    for second, which in enumerate(order):
        passed += let_through(gateways[which % many], 20, second)
        for one in gateways:
            ledger.round(one, second)
    assert passed <= many * RATE.burst + RATE.per_second * len(order)


def test_a_ledger_that_is_away_is_told_later() -> None:
    ledger, first, second = Ledger(), sharing(), sharing()
    assert let_through(first, 20, 0.0) == 10
    for one in (first, second):
        ledger.round(one, 0.0, away=True)
    assert let_through(second, 4, 0.0) == 4, "its own bucket"
    for one in (first, second, first):
        ledger.round(one, 0.0)
    assert let_through(second, 20, 0.0) == 0
    assert let_through(second, 20, 4.0) == 0, "what both took has to flow in again"
    assert let_through(second, 20, 10.0) > 0


def test_one_that_starts_later_is_not_charged_for_all_that_was() -> None:
    ledger, first = Ledger(), sharing()
    for second in range(100):
        let_through(first, 1, second)
        ledger.round(first, second)
    later = sharing()
    ledger.round(later, 100.0)
    assert let_through(later, 20, 100.0) == 9


def test_nothing_is_written_where_nothing_was_taken() -> None:
    ledger, one = Ledger(), sharing()
    let_through(one, 3, 0.0)
    ledger.round(one, 0.0)
    assert one.news() == {}
