"""Garbage goes, by age and size; what is worked on, keys and revocations stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stitch_worker import collect as collector
from stitch_worker.collect import LEFTOVER_SECONDS, UNANSWERED_SECONDS, collect, main
from stitchcore.artifact.store import Store, open_store

NOW = 2_000_000_000.0
DAY = 86400.0


def placed(store: Store, age: float, *parts: str, size: int = 100) -> None:
    """A file that was written `age` seconds before NOW."""
    store.write(bytes(size), *parts)
    os.utime(store.path(*parts), (NOW - age, NOW - age))


def answered(store: Store, key: str, status: str, age: float) -> None:
    store.answer(key, {"status": status, "time": NOW - age})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path))
    for number, age in enumerate((1, 20, 40)):
        placed(made, age * DAY, "artifacts", f"a{number}", "manifest.sig")
        placed(made, age * DAY, "requests", f"r{number}", "meta.json")
        answered(made, f"r{number}", "ready", age * DAY)
    placed(made, 90 * DAY, "requests", "busy", "meta.json")
    answered(made, "busy", "pending", 10)
    placed(made, 90 * DAY, "revoked.json")
    placed(made, 90 * DAY, "public_keys.json")
    return made


def names(store: Store, now: float = NOW, **options: object) -> set[str]:
    return {"/".join(e.parts) for e in collect(store, now, **options)}  # type: ignore[arg-type]


def test_what_is_old_goes_with_its_answer(store: Store) -> None:
    assert names(store) == {"artifacts/a2", "requests/r2"}
    assert store.list("artifacts") == ("a0", "a1")
    assert store.list("answers") == ("busy.json", "r0.json", "r1.json")
    assert store.exists("revoked.json") and store.exists("public_keys.json")
    assert names(store) == set()


def test_the_oldest_goes_until_it_fits(store: Store) -> None:
    assert names(store, limit=250) == {
        "artifacts/a2",
        "requests/r2",
        "artifacts/a1",
        "requests/r1",
    }
    assert store.list("artifacts") == ("a0",)


def owned(store: Store, tenant: str, name: str, age: float, used: float, size: int) -> None:
    """An artifact of a tenant, with the request that it was made for."""
    meta = json.dumps({"tenant": tenant}).encode()
    store.write(meta, "requests", f"r-{name}", "meta.json")
    for part in ("meta.json", "used"):
        if part == "used":
            store.write(b"", "requests", f"r-{name}", part)
        seconds = NOW - (used if part == "used" else age)
        os.utime(store.path("requests", f"r-{name}", part), (seconds, seconds))
    store.answer(f"r-{name}", {"status": "ready", "key": name, "time": NOW - age})
    placed(store, age, "artifacts", name, "kernels.so", size=size)


def test_a_burst_removes_nobody_elses_and_nothing_in_use(tmp_path: Path) -> None:
    """The oldest went, whoever's it was: a thousand new artifacts of one tenant were the end of all
    that others had."""
    store = open_store(str(tmp_path))
    owned(store, "quiet", "old", 20 * DAY, 5 * DAY, 1000)
    for number in range(9):
        owned(store, "loud", f"l{number}", 3 * DAY, 3 * DAY, 1000)
    owned(store, "loud", "running", 9 * DAY, 0.1 * DAY, 1000)
    gone = names(store, limit=5000)
    assert not {"artifacts/old", "artifacts/running", "requests/r-running"} & gone
    assert sum(name.startswith("artifacts/l") for name in gone) >= 6
    assert names(store, limit=0) >= {"artifacts/old"}
    assert store.list("artifacts") == ("running",), "what is in use stays, though it does not fit"


def test_an_artifact_of_two_requests_is_in_use_with_either(tmp_path: Path) -> None:
    """Jobs with XLA and without it hand in requests of their own, and get one artifact."""
    store = open_store(str(tmp_path))
    for asked, forgotten in (("a", "b"), ("d", "c")):
        for name, used in ((asked, 0.1 * DAY), (forgotten, 20 * DAY)):
            owned(store, "one", name, 20 * DAY, used, 10)
            artifact = f"of-{asked}"
            store.answer(f"r-{name}", {"status": "ready", "key": artifact, "time": NOW - 20 * DAY})
            placed(store, 20 * DAY, "artifacts", artifact, "kernels.so")
    assert not {"artifacts/of-a", "artifacts/of-d"} & names(store, limit=0)


@pytest.mark.parametrize("time", ["1", None, [2], True, float("inf"), float("nan")], ids=str)
def test_an_answer_that_says_no_time_ends_no_collection(tmp_path: Path, time: object) -> None:
    """Workers write answers, and whoever has taken one over may write anything."""
    store = open_store(str(tmp_path))
    owned(store, "a", "asked", 90 * DAY, 40 * DAY, 10)
    store.answer("r-asked", {"status": "ready", "key": "asked", "time": time})
    assert names(store) == {"artifacts/asked", "requests/r-asked"}


def test_what_is_asked_for_is_not_old(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    owned(store, "a", "asked", 90 * DAY, 2 * DAY, 10)
    owned(store, "a", "forgotten", 90 * DAY, 40 * DAY, 10)
    assert names(store) == {"artifacts/forgotten", "requests/r-forgotten"}


def test_a_dry_run_removes_nothing(store: Store) -> None:
    assert names(store, dry=True) == {"artifacts/a2", "requests/r2"}
    assert len(store.list("artifacts")) == 3


def test_leftovers_of_dead_writers_go_and_those_at_work_stay(store: Store) -> None:
    placed(store, LEFTOVER_SECONDS + 1, "unsigned", "dead", "manifest.json")
    placed(store, LEFTOVER_SECONDS - 9, "unsigned", "alive", "manifest.json")
    placed(store, LEFTOVER_SECONDS + 1, "unsigned", "waits", "request.json")
    placed(store, LEFTOVER_SECONDS + 1, "artifacts", ".a9.tmp", "kernels.so")
    placed(store, 1, "artifacts", ".a8.tmp", "kernels.so")
    found = names(store)
    assert {"unsigned/dead", "artifacts/.a9.tmp"} <= found
    assert not {"unsigned/alive", "unsigned/waits", "artifacts/.a8.tmp"} & found
    assert store.list("unsigned") == ("alive", "waits")
    assert store.hidden("artifacts") == (".a8.tmp",)


def test_what_nobody_answers_or_asks_for_goes_after_a_day(store: Store) -> None:
    """Requests without a worker, tasks that a broker has lost, artifacts without a signer."""
    for name, age in (("new", UNANSWERED_SECONDS - 9), ("left", UNANSWERED_SECONDS + 9)):
        placed(store, age, "requests", name, "meta.json")
        placed(store, 9 * DAY, "requests", f"{name}_pending", "meta.json")
        answered(store, f"{name}_pending", "pending", age)
        placed(store, age, "unsigned", name, "request.json")
    assert names(store) - {"artifacts/a2", "requests/r2"} == {
        "requests/left",
        "requests/left_pending",
        "unsigned/left",
    }
    assert {"new", "new_pending", "busy"} <= set(store.list("requests"))
    assert not store.exists("answers", "left_pending.json")


def test_the_command_collects(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "IN_USE_SECONDS", -2 * NOW)
    assert main(["--store", str(tmp_path), "--days", "100000", "--bytes", "0"]) == 0
    assert store.list("artifacts") == ()
    assert store.list("requests") == ("busy",)


def test_object_stores_are_collected_too() -> None:
    store = open_store("memory://collect-test")
    store.write(b"x", "artifacts", "k", "manifest.sig")
    assert names(store, now=NOW + 1e9) == {"artifacts/k"}
    assert store.list("artifacts") == ()
