"""The gateway's client without TensorFlow: what it asks, keeps, refuses and reports."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.artifact import sign
from stitchcore.inject import cache, client, gateway, reasons, settings
from tests.inject import https_gateway as gateways
from tests.inject.gateway_job import DIGEST, KEY, META, Job, files, manifest, ready
from tests.inject.https_gateway import Asked, Reply
from tests.waiting import wait_for


@pytest.fixture
def key(key_file: Path) -> Any:
    return sign.load_or_create_key(key_file)


def test_graph_out_artifact_in(tmp_path: Path, key: Any, public_key: str) -> None:
    made = files(key, manifest())
    with gateways.serve(tmp_path / "g", ready(gateways.tar(made))) as server:
        job = Job(server, tmp_path / "c", ("00" * 32, public_key))  # either key will do
        assert job.source.answer(DIGEST) is None
        job.source.submit(DIGEST, b"graph", META)
        job.source.submit(DIGEST, b"graph", META)
        assert job.until("pending")["stage"] == "plan"
        assert job.until("ready")["key"] == KEY
        artifact = job.source.fetch(KEY, DIGEST, META["target"])
        assert artifact.libraries == (b"code",) and artifact.key == KEY
        assert server.paths() == ["POST /v1/graphs", f"GET /v1/artifacts/{'b' * 64}"]
        document = dict(server.asked[0].document)
        session = document.pop("session")
        assert document == {**META, "graph": "Z3JhcGg="}
        job.source.observe("swap_begin", {"digest": DIGEST, "key": KEY})
        wait_for(lambda: len(server.asked) == 3)
        assert server.asked[2].document["session"] == session, "one session from the first call on"
        with pytest.raises(reasons.Refused):
            job.source.fetch(KEY, "e" * 64, META["target"])
        assert job.complaints == []
        assert (tmp_path / "c" / "artifacts" / DIGEST / "kernels_00.so").read_bytes() == b"code"


def test_a_job_that_waits_says_so(tmp_path: Path, key: Any, public_key: str) -> None:
    """STITCH_WAIT: its first step is held back, so that it goes before those that run."""
    with gateways.serve(tmp_path / "g", ready(gateways.tar(files(key, manifest())))) as server:
        job = Job(server, tmp_path / "c", (public_key,), STITCH_WAIT="60")
        job.source.submit(DIGEST, b"graph", META)
        job.until("ready")
        assert server.asked[0].document["waits"] is True


@pytest.mark.slow
def test_the_cache_spares_the_download_and_is_trusted_no_more_than_it(
    tmp_path: Path, key: Any, public_key: str
) -> None:
    made = gateways.tar(files(key, manifest()))
    for spoil, status in ((None, 200), (None, 304), ("kernels_00.so", 200), ("etag", 200)):
        if spoil:
            path = tmp_path / "c" / "artifacts" / DIGEST / spoil
            path.write_bytes(path.read_bytes() + b"x")
        given: list[int] = []

        def answer(asked: Asked, given: list[int] = given) -> Reply:
            waits = len(given) == 1  # the first question for the artifact
            pending = gateways.reply(202, {"key": "b" * 64, "retry_after": 0.2})
            made_ = pending if waits else ready(made)(asked)
            given.append(made_.status)
            return made_

        with gateways.serve(tmp_path / "g", answer) as server:
            job = Job(server, tmp_path / "c", (public_key,))
            job.source.submit(DIGEST, b"graph", META)
            job.until("ready")
            assert given[-1] == status
            assert job.source.fetch(KEY, DIGEST, META["target"]).libraries == (b"code",)
            said = [reason for _, reason, _ in job.complaints]
            assert said == (["bad_artifact"] if spoil == "kernels_00.so" else [])


FORGED = {
    "another key's signature": "bad_signature",
    "edited after signing": "bad_signature",
    "another graph": "bad_artifact",
    "a newer machine": "wrong_target",
    "another architecture": "wrong_target",
    "another TensorFlow": "bad_artifact",
    "another ABI": "bad_artifact",
    "another library": "bad_artifact",
    "cut": "bad_artifact",
    "no signature": "bad_artifact",
    "a path": "bad_artifact",
    "a link": "bad_artifact",
    "not a tar": "bad_artifact",
    "revoked": "revoked",
}


def forged(how: str, key: Any, other: Any) -> bytes:
    changes: dict[str, dict[str, Any]] = {
        "another graph": {"digest": "e" * 64},
        "a newer machine": {"target": "cpu-x86-64-v9"},
        "another architecture": {"target": "sm_90"},
        "another TensorFlow": {"tf": "2.15"},
        "another ABI": {"abi": 2},
    }
    made = files(key, manifest(**changes.get(how, {})))
    if how == "another key's signature":
        made = files(other, manifest())
    if how == "edited after signing":
        made["manifest.json"] += b" "
    if how == "another library":
        made["kernels_00.so"] = b"evil"
    if how == "no signature":
        del made["manifest.sig"]
    if how == "a path":
        made["../../x"] = b""
    data = gateways.tar(made)
    if how == "a link":
        data = data.replace(*link_of("kernels_00.so", data))
    if how == "cut":
        data = data[:1200]
    return b"\x1f\x8b" + data if how == "not a tar" else data


def link_of(name: str, data: bytes) -> tuple[bytes, bytes]:
    """The header of `name` in a tar, and the same turned into a symbolic link."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entry = archive.getmember(name)
        start = entry.offset
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return data[start : start + 512], link.tobuf(tarfile.USTAR_FORMAT)[:512]


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_artifact_is_refused_before_anyone_may_load_it(
    how: str, tmp_path: Path, key: Any, public_key: str
) -> None:
    other = sign.load_or_create_key(tmp_path / "other")
    tar = forged(how, key, other)

    def answer(asked: Asked) -> Reply:
        if how == "revoked" and asked.path == "/v1/graphs":
            return gateways.reply(200, {"key": "b" * 64, "revoked": [KEY, 5]})
        return ready(tar)(asked)

    with gateways.serve(tmp_path / "g", answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.submit(DIGEST, b"graph", META)
        assert job.until("refused")["reason"] == FORGED[how]
        with pytest.raises(reasons.Refused):
            job.source.fetch(KEY, DIGEST, META["target"])
        kept = [path.name for path in (tmp_path / "c").glob("artifacts/*")]
        assert kept == ([DIGEST] if how == "revoked" else [])


def test_a_key_that_leaked_signs_nothing_for_a_job_that_was_given_it(
    tmp_path: Path, key: Any, public_key: str
) -> None:
    """The gateway's word only takes keys away: it gives none."""
    tar = gateways.tar(files(key, manifest()))
    for announced, status in (([public_key], "ready"), (["ab" * 32], "refused"), ([], "ready")):

        def answer(asked: Asked, announced: list[str] = announced) -> Reply:
            if asked.path == "/v1/graphs":
                trust = {"public_keys": announced, "revoked": []}
                return gateways.reply(200, {"key": "b" * 64, "trust": trust})
            return ready(tar)(asked)

        with gateways.serve(tmp_path / "g", answer) as server:
            job = Job(server, tmp_path / f"c{len(announced)}{status}", (public_key,))
            job.source.submit(DIGEST, b"graph", META)
            assert job.until(status).get("reason", "bad_signature") == "bad_signature"


LIES = [
    gateways.reply(202, {"status": "pending"}),
    gateways.reply(202, {"key": "../../etc/passwd"}),
    gateways.reply(200, {"key": 5}),
    Reply(200, b"[" * 100_000),
    Reply(200, b"not json"),
    Reply(500, b"{}"),
    Reply(200, b"{}" + b" " * 2**21),
    Reply(raw=b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000),
    Reply(302, headers={"Location": "https://127.0.0.1/"}),
]


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_lying_gateway_is_asked_again(lie: Reply, tmp_path: Path, public_key: str) -> None:
    with gateways.serve(tmp_path / "g", lambda _: lie) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.submit(DIGEST, b"graph", META)
        wait_for(lambda: len(server.asked) >= 2)
        assert job.source.answer(DIGEST) is None
        job.source.finish()
        assert [reason for _, reason, _ in job.complaints] == ["gateway_error"]


@pytest.mark.slow
def test_what_the_gateway_has_lost_is_posted_again(
    tmp_path: Path, key: Any, public_key: str
) -> None:
    tar = gateways.tar(files(key, manifest()))
    lost = iter([True])

    def answer(asked: Asked) -> Reply:
        if asked.method == "GET" and next(lost, False):
            return gateways.reply(404, {"reason": "not_found"})
        return ready(tar)(asked)

    with gateways.serve(tmp_path / "g", answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.submit(DIGEST, b"graph", META)
        job.until("ready")
        assert [path.split()[0] for path in server.paths()] == ["POST", "GET", "POST", "GET"]


def test_refusals_of_the_gateway(tmp_path: Path, public_key: str) -> None:
    answers = iter(
        [
            gateways.reply(429, {}, Retry_After="0.2"),
            gateways.reply(409, {"reason": "no_worker_for_target", "retry_after": 0.2}),
            gateways.reply(409, {"reason": "collective", "detail": "why"}),
        ]
    )
    with gateways.serve(tmp_path / "g", lambda _: next(answers)) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.submit(DIGEST, b"graph", META)
        found = job.until("refused")
        assert (found["reason"], found["detail"]) == ("collective", "why")
        assert [reason for _, reason, _ in job.complaints] == ["no_worker_for_target"]
        assert len(server.asked) == 3


@pytest.mark.slow
def test_a_gateway_that_comes_up_later_is_found(tmp_path: Path, key: Any, public_key: str) -> None:
    """As where a service mesh's proxy starts after the job."""
    started = time.monotonic()
    tar = gateways.tar(files(key, manifest()))

    def answer(asked: Asked) -> Reply:
        return ready(tar)(asked) if time.monotonic() - started > 1.0 else Reply(raw=b"")

    with gateways.serve(tmp_path / "g", answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.submit(DIGEST, b"graph", META)
        job.until("ready")
        assert job.complaints == []  # it was not silent for long enough to be worth a line


def test_silence_is_said_once_after_a_minute(
    tmp_path: Path, public_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(gateway, "SLOW_SECONDS", 0.2)
    with gateways.serve(tmp_path / "g", lambda _: Reply(raw=b"")) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.submit(DIGEST, b"graph", META)
        wait_for(lambda: bool(job.complaints))
        asked = len(server.asked)
        wait_for(lambda: len(server.asked) > asked + 2)  # and it is still tried
        assert [reason for _, reason, _ in job.complaints] == ["gateway_unreachable"]


def test_a_full_cache_is_counted_and_the_artifact_used(
    tmp_path: Path, key: Any, public_key: str
) -> None:
    library = os.urandom(60_000)
    tar = gateways.tar(files(key, manifest(library), library))
    with gateways.serve(tmp_path / "g", ready(tar)) as server:
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "something-else").write_bytes(os.urandom(60_000))
        job = Job(server, tmp_path / "c", (public_key,), STITCH_CACHE_LIMIT="120000")
        job.source.submit(DIGEST, b"graph", META)
        job.until("ready")
        assert [reason for _, reason, _ in job.complaints] == ["cache_full"]
        assert job.source.fetch(KEY, DIGEST, META["target"]).libraries == (library,)


def test_an_artifact_beyond_the_cache_limit_is_not_even_read(
    tmp_path: Path, public_key: str
) -> None:
    with gateways.serve(tmp_path / "g", ready(b"x" * 100_000)) as server:
        job = Job(server, tmp_path / "c", (public_key,), STITCH_CACHE_LIMIT="100000")
        job.source.submit(DIGEST, b"graph", META)
        wait_for(lambda: len(server.asked) >= 3)
        job.source.finish()
        assert [reason for _, reason, _ in job.complaints] == ["gateway_error"]


def test_room_is_made_by_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = str(tmp_path)
    for number, name in enumerate("abc"):
        path = cache.folder(store, name)
        cache.keep(store, path, {"f": os.urandom(30_000)}, 10**6)
        os.utime(path, (number, number))
    assert cache.touch(cache.folder(store, "a")) and not cache.touch(cache.folder(store, "z"))
    cache.keep(store, cache.folder(store, "d"), {"f": os.urandom(30_000)}, 160_000)
    assert sorted(os.listdir(tmp_path / "artifacts")) == ["a", "c", "d"]
    with pytest.raises(reasons.Refused) as caught:
        cache.keep(store, cache.folder(store, "e"), {"f": bytes(200_000)}, 160_000)
    assert caught.value.reason == "cache_full"


def test_sessions_make_room_too_and_their_files_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "EVENTS_BYTES", 1000)
    store = str(tmp_path)
    told: list[str] = []
    events = client.Events(store, "old", lambda kind, _: told.append(kind))
    for _ in range(100):
        events.write("savings", digest=DIGEST)
    events.write("end")
    lines = (tmp_path / "sessions" / "old" / "events.jsonl").read_text().splitlines()
    assert 5 < len(lines) < 20 and json.loads(lines[-1])["type"] == "end" and len(told) == 101
    os.utime(tmp_path / "sessions" / "old", (1, 1))
    cache.keep(store, cache.folder(store, "a"), {"f": os.urandom(59_000)}, 80_000)
    assert not (tmp_path / "sessions" / "old").exists()


@given(st.integers(0, 10_000), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_pauses_are_bounded(attempts: int, patient: bool, draw: float) -> None:
    longest = gateway.QUICK_SECONDS if patient else gateway.SLOW_SECONDS
    assert 0.25 <= gateway.pause(attempts, patient, draw) <= longest
    assert gateway.pause(attempts, patient, draw) <= gateway.pause(attempts + 1, patient, draw)


@given(st.one_of(st.none(), st.floats(), st.text(), st.integers(), st.lists(st.none())))
def test_what_an_answer_asks_to_wait_is_bounded(asked: Any) -> None:
    assert 0.2 <= gateway.wait_of(asked, 0.5) <= 75.0


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar's header, of a file that may be anything."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


BLOCKS = st.lists(
    st.one_of(
        st.builds(
            header,
            st.sampled_from(["manifest.json", "manifest.sig", "k.so", "../x", "é"]),
            st.integers(0, 2**36),
            st.sampled_from([bytes([kind]) for kind in b"\00123457gxLKSD"]),
        ),
        st.binary(min_size=512, max_size=512),
        st.just(bytes(512)),
    ),
    max_size=8,
).map(b"".join)


@given(st.one_of(st.binary(max_size=2000), BLOCKS))
def test_any_bytes_unpack_or_are_refused(data: bytes) -> None:
    try:
        read = gateway.unpack(data)
    except reasons.Refused:
        return
    for name in ("manifest.json", "manifest.sig", "k.so"):
        with contextlib.suppress(reasons.Refused):
            assert len(read(name, 2**40)) <= len(data)


def test_a_sparse_file_of_a_lying_gateway_takes_no_memory() -> None:
    """GNU tar's sparse files: 512 bytes that say to be 64 GiB, most of them holes."""
    block = bytearray(header("kernels_00.so", 0, tarfile.GNUTYPE_SPARSE))
    block[386:410] = b"%011o\0%011o\0" % (0, 0)
    block[483:495] = b"%011o\0" % (2**33 - 1)
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
    with tarfile.open(fileobj=io.BytesIO(bytes(block) + bytes(1024))) as archive:
        [member] = archive.getmembers()
        assert member.issparse() and member.size == 2**33 - 1, "it is one"
    with pytest.raises(reasons.Refused, match="something else"):
        gateway.unpack(bytes(block) + bytes(1024))


def test_only_manifest_and_signature_are_unpacked_before_the_signature_holds(key: Any) -> None:
    tar = gateway.unpack(gateways.tar(files(key, manifest())))
    asked: list[str] = []

    def read(name: str, limit: int) -> bytes:
        asked.append(name)
        return tar(name, limit)

    expected = client.Expected("2.21", META["target"], (bytes(32),), lambda *_: False)
    with pytest.raises(reasons.Refused, match="bad_signature"):
        client.verified(read, DIGEST, expected)
    assert asked == ["manifest.json", "manifest.sig"]


def test_settings_of_a_gateway(tmp_path: Path) -> None:
    keys = "ab" * 32 + "," + "cd" * 32
    good = {
        "STITCH_GATEWAY": "https://gateway.example:8443",
        "STITCH_CA": "/ca",
        "STITCH_TOKEN_FILE": "/token",
        "STITCH_PUBLIC_KEYS": keys,
        "XDG_CACHE_HOME": str(tmp_path),
    }
    read = settings.read(good)
    assert read.gateway is not None and (read.gateway.host, read.gateway.port) == (
        "gateway.example",
        8443,
    )
    assert read.store == str(tmp_path / "stitchcore" / "job") and read.baseline == 50
    assert len(read.public_keys) == 2 and read.reports
    assert settings.read({}).store == "" and settings.read({}).baseline == 0
    for name in ("STITCH_CA", "STITCH_TOKEN_FILE", "STITCH_PUBLIC_KEYS"):
        with pytest.raises(reasons.Refused, match=name):
            settings.read({**good, name: ""})
    for name, value in (
        ("STITCH_PUBLIC_KEYS", keys + "," + "ef" * 32),
        ("STITCH_CACHE_LIMIT", "-1"),
        ("STITCH_BASELINE", "x"),
        ("STITCH_ALLOW_UNMEASURED", "yes"),
    ):
        with pytest.raises(reasons.Refused, match=name):
            settings.read({**good, name: value})
    assert replace(read, mode="off").mode == "off"
