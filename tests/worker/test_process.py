"""One request through `process`, whose child may die, lie or be too large."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitch_worker import attempts, children, compiling, unsigned
from stitch_worker.answers import Answers
from stitch_worker.attempts import Attempts
from stitch_worker.children import Local
from stitch_worker.compiler import Server
from stitch_worker.compiling import Spent
from stitch_worker.lease import FolderLeases
from stitch_worker.remote import About, Remote
from stitch_worker.service import Service, process
from stitchcore.artifact.store import open_store
from stitchcore.device.host import host
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.sandbox import isolate
from tests.worker.requests import TF, meta_of, submit, tiny_graph

LIMITS = isolate.Limits(120, 8 * 2**30, 300)


@pytest.fixture(params=["this", "another"])
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Compile children are this process's, or another one's."""
    store = open_store(str(tmp_path / "store"))
    leases = FolderLeases(tmp_path / "leases", 1.0)
    here = Local(LIMITS, tmp_path / "logs")
    with contextlib.ExitStack() as opened:
        children = opened.enter_context(served(here)) if request.param == "another" else here
        yield Service(store, leases, host().target, TF, children, jobs=2, lease_seconds=1.0)


@contextlib.contextmanager
def served(here: Local) -> Iterator[Remote]:
    """Children of another process, but that it is a thread: see test_compiler.py."""
    server = Server(here, About(host().target, TF, 2), accept_seconds=0.02)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen()
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        yield Remote(Path(folder, "s"))
        server.end.set()
        thread.join(120)
        assert not thread.is_alive(), "nothing is asked for any more"


def answer(service: Service, key: str) -> dict[str, Any]:
    return service.store.read_answer(key) or {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": "sm_90"}, "wrong_target"),
        ({"tf": "2.15.0"}, "unsupported_version"),
        ({"abi": 9}, "unsupported_version"),
    ],
    ids=lambda value: str(value),
)
def test_requests_for_others_are_refused(
    service: Service, change: dict[str, Any], reason: str
) -> None:
    graph = tiny_graph()
    key = submit(service.store, graph, meta_of(graph, **change))
    assert process(replace(service, open=("network",)), key) == "refused"
    assert (answer(service, key)["reason"], answer(service, key)["open"]) == (reason, ["network"])
    assert process(service, key) == "refused"


def test_names_that_are_no_keys_reach_nothing(service: Service) -> None:
    for name in ("", "../x", "a" * 63, "A" * 64):
        with pytest.raises(Refused) as caught:
            process(service, name)
        assert caught.value.refusal.reason is Reason.DIGEST_MISMATCH


def test_the_task_of_a_collected_request_ends(service: Service) -> None:
    """It leaves no answer either: one that is pending would be believed."""
    assert process(service, "a" * 64) == "gone"
    assert service.store.read_answer("a" * 64) is None


def test_a_refusal_that_holds_is_told_anew(service: Service) -> None:
    """A gateway of other code waits for an answer since it asked again; what it cost stays said
    under its old token, so that it is counted once."""
    key = submit(service.store, tiny_graph())
    Answers(service.store, key, 7).refused(Refusal("s", Reason.SLOWER), {"compile": 2.0})
    before = answer(service, key)
    asked = time.time()
    assert process(service, key) == "refused"
    after = answer(service, key)
    assert after.pop("time") >= asked > before.pop("time")
    assert after == before


@pytest.mark.slow
def test_the_child_computes_the_digest_itself(service: Service) -> None:
    graph = tiny_graph()
    lying = meta_of(graph, digest="ab" * 32)
    key = submit(service.store, graph, lying)
    assert process(service, key) == "refused"
    assert answer(service, key)["reason"] == "digest_mismatch"


@pytest.mark.slow
def test_a_graph_that_kills_the_child_twice_is_quarantined(
    service: Service, tmp_path: Path
) -> None:
    key = submit(service.store, tiny_graph())
    small = Local(replace(LIMITS, memory=2**26), tmp_path / "logs")
    assert process(replace(service, children=small), key) == "again"
    assert answer(service, key)["status"] == "pending"
    with served(small) as remote:
        assert process(replace(service, children=remote), key) == "refused"
    found = answer(service, key)
    assert found["reason"] == "quarantined"
    assert found["detail"].count("it used more than 0.1 GiB") == 2
    assert process(service, key) == "refused", "whoever asks again"


def test_lost_workers_do_not_quarantine_until_the_cap(service: Service) -> None:
    lost = Attempts(started=attempts.LOST - 1, code="c")
    assert attempts.verdict(lost) is None
    refusal = attempts.verdict(Attempts(started=attempts.LOST, code="c"))
    assert refusal is not None and refusal.reason is Reason.QUARANTINED
    ended = Attempts(started=50, ended=50, deaths=("signal SIGSEGV",), code="c")
    assert attempts.verdict(ended) is None
    key = submit(service.store, tiny_graph())
    attempts.write(service.store, key, replace_code(lost))
    assert attempts.read(service.store, key).lost == attempts.LOST - 1
    attempts.write(service.store, key, lost)
    assert attempts.read(service.store, key).started == 0, "other code may do better"


def replace_code(found: Attempts) -> Attempts:
    return Attempts(found.started, found.ended, found.deaths, attempts.code_version())


def test_a_stale_holder_writes_nothing(service: Service) -> None:
    old, new = Answers(service.store, "a" * 64, 1), Answers(service.store, "a" * 64, 2)
    old.pending("lower")
    new.pending("start")
    for write in (
        lambda: old.pending("build"),
        lambda: old.ready("k", 1.0, {}),
        lambda: old.refused(Refusal("s", Reason.SLOWER), {}),
    ):
        with pytest.raises(Refused) as caught:
            write()
        assert caught.value.refusal.reason is Reason.LEASE_LOST
    assert answer(service, "a" * 64)["stage"] == "start"


@pytest.mark.slow
def test_a_worker_whose_lease_is_taken_stops_and_leaves_no_artifact(service: Service) -> None:
    """Its keeper goes on renewing beside the theft, which is therefore tried until it is done."""
    key = submit(service.store, tiny_graph())

    def stolen() -> bool:
        for file in (Path(str(service.store.root)).parent / "leases").iterdir():
            file.unlink()
        return service.leases.acquire(key, 10**15) is not None

    def steal(event: str, _: str) -> None:
        if event == "lower":
            assert any(stolen() for _ in range(100))

    assert process(replace(service, observe=steal), key) == "lost"
    assert not service.store.list(unsigned.FOLDER)


def replaced(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """The child's program is `program`; the rest is real."""
    package = folder / "program" / "stitch_worker"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "child.py").write_text(program)
    monkeypatch.setattr(children, "SOURCES", (str(folder / "program"),))


CHILD = """
import json, os, sys
print("not JSON"); print(json.dumps({"stage": "../../x", "done": 1, "total": 2, "cpu": 1e999}))
print(json.dumps({"stage": "lower", "done": 1, "total": 2, "cpu": 3.0})); sys.stdout.flush()
"""
LIES = {
    "nothing": "",
    "a crash": "os.kill(os.getpid(), 11)",
    "an exit code": "sys.exit(3)",
    "a reason that is none": 'json.dump({"reason": "x"}, open("refused.json", "w"))',
    "a link": 'os.symlink("/etc/passwd", "refused.json")',
    "a pipe": 'os.mkfifo("refused.json")',
    "an artifact that is none": 'os.mkdir("unsigned"); open("unsigned/manifest.json", "w").close()',
    "a link out": (
        'os.mkdir("unsigned"); open("unsigned/manifest.json", "w").close();'
        'os.symlink("/etc/passwd", "unsigned/report.json")'
    ),
    "a flood of output": 'sys.stdout.write("x" * 10_000_000)',
    "a line of endless depth": 'print("[" * 4000)',
    "a refusal of endless depth": 'open("refused.json", "w").write("[" * 60_000)',
    "a manifest of endless depth": (
        'os.mkdir("unsigned"); open("unsigned/manifest.json", "w").write(\'{"x":\' + "[" * 100_000)'
    ),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.replace(" ", "_"))
def test_whatever_the_child_leaves_is_judged(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    replaced(tmp_path, monkeypatch, CHILD + LIES[lie] + "\n")
    key = submit(service.store, tiny_graph())
    outcome = process(service, key)
    artifact_lie = (
        "artifact" in lie or "manifest" in lie or lie in ("a link out", "a link", "a pipe")
    )
    assert outcome == ("refused" if artifact_lie else "again")
    assert len(attempts.read(service.store, key).deaths) == (not artifact_lie)
    if artifact_lie:
        assert answer(service, key)["reason"] == "bad_artifact"
    assert not service.store.list(unsigned.FOLDER)
    assert "root:" not in json.dumps(answer(service, key))


TALKATIVE = r"""
import json
print(json.dumps({"stage": "\ud800", "done": -10**300, "total": 10**300}), flush=True)
said = "\x1b]0;owned\x07\ud800\nerror: all is well" + "x" * 10_000
json.dump({"reason": "slower", "subject": "\x1b[2J", "detail": said}, open("refused.json", "w"))
"""


def test_a_childs_words_reach_no_terminal_as_they_are(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(tmp_path, monkeypatch, TALKATIVE)
    key = submit(service.store, tiny_graph())
    seen = []

    def told(event: str, key: str) -> None:
        seen.append((event, answer(service, key)))

    assert process(replace(service, observe=told), key) == "refused"
    counts = {(one["done"], one["total"]) for event, one in seen if event == "unknown"}
    assert counts == {(0, compiling.MOST_COUNTED)}
    refusal = answer(service, key)
    assert refusal["detail"].startswith(" [2J:  ]0;owned   error: all is wellxxx")
    assert len(refusal["detail"]) == 500 + len(" [2J: ")


def test_processor_seconds_go_to_what_used_them() -> None:
    spent = Spent()
    for stage, used in (("start", 1.0), ("build", 2.0), ("verify", 5.0), ("measure", 6.0)):
        spent.used(used)
        spent.stage = stage
    spent.used(10.0)
    spent.stage = "packed"
    spent.used(11.0)
    assert spent.seconds == {"compile": 6.0, "measure": 5.0}
    spent.used(2.0)
    assert spent.seconds == {"compile": 6.0, "measure": 5.0}, "time does not run backwards"


SPIN = "exec('import time\\nwhile time.process_time() < 0.5: pass')"
"""Half a processor's second."""


def test_what_a_child_uses_that_says_nothing_is_counted(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and something it has started works on: whoever waits for it sees that."""
    program = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {SPIN!r}])\n"
    replaced(tmp_path, monkeypatch, program + "time.sleep(600)\n")
    job, spent = (
        compiling.Job("ab" * 32, b"", b"{}", "cd" * 32, {"target": service.target}, "", 1),
        Spent(),
    )
    made = compiling.compile_alone(
        job,
        service.children,
        lambda *_: None,
        lambda: spent.seconds["compile"] > 0.4,
        spent,
    )
    assert made is None, "it was seen, long before the limit"


@pytest.mark.slow
def test_what_earlier_attempts_have_spent_is_in_the_final_answer(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a worker that is lost, and of a child that dies without a word, twice."""
    key = submit(service.store, tiny_graph())
    line = """print('{"stage": "plan", "done": 0, "total": 1}', flush=True)"""

    def lost(event: str, _: str) -> None:
        if event == "plan":
            raise KeyboardInterrupt

    replaced(tmp_path, monkeypatch, f"{SPIN}\n{line}\nimport time; time.sleep(600)\n")
    with pytest.raises(KeyboardInterrupt):
        process(replace(service, observe=lost), key)
    assert answer(service, key)["spent"]["compile"] >= 0.45
    replaced(tmp_path, monkeypatch, f"{SPIN}\nimport os; os.kill(os.getpid(), 11)\n")
    assert process(service, key) == "again"
    assert attempts.read(service.store, key).spent["compile"] >= 0.9
    assert process(service, key) == "refused"
    found = answer(service, key)
    assert found["reason"] == "quarantined" and found["spent"]["compile"] >= 1.35
    known = attempts.read(service.store, key)
    assert (known.account, known.spent) == (found["account"], found["spent"])
    attempts.write(service.store, key, structs.replace(known, code="other"))
    other = attempts.going_on(attempts.read(service.store, key), found, found["token"] + 1)
    assert (other.started, other.account, other.spent) == (0, known.account, known.spent)


def test_a_sum_begins_where_nobody_has_begun_one() -> None:
    told = {"account": 5, "spent": {"compile": 2.0, "measure": 1.0}}
    assert attempts.going_on(Attempts(), None, 9) == Attempts(account=9)
    assert attempts.going_on(Attempts(), told, 9).spent == told["spent"]
    known = Attempts(spent={"compile": 3.0}, account=5)
    assert attempts.going_on(known, told, 9).spent == {"compile": 3.0, "measure": 1.0}
    assert attempts.going_on(known, {**told, "account": 4}, 9) == known
