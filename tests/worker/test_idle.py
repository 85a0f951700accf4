"""What a worker that waits costs: the arithmetic, and a real worker, killed and restarted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_operator.gateway.ledger import Ledger
from stitch_operator.gateway.waiting import SILENT_SECONDS, Reader, seconds
from stitch_worker import idle
from stitch_worker.collect import ENDED_SECONDS, collect
from stitch_worker.idle import Idle, Meter, Reserved
from stitchcore.artifact.store import Store, open_store
from tests.waiting import PATIENCE_SECONDS, wait_for
from tests.worker.conftest import Cluster

LOOKS = st.lists(
    st.tuples(st.floats(0, 60), st.floats(0, 2), st.sampled_from([0.0, 0.5, 1.0])), max_size=30
)
CORES, GPUS = 2.0, 1.0


@given(LOOKS)
def test_what_is_held_counts_while_there_is_no_task_and_never_falls(
    looks: list[tuple[float, float, float]],
) -> None:
    found = Idle(0.0, 0.0)
    for passed, used, waiting in looks:
        after = found.after(found.at + passed, found.used + used, waiting, Reserved(CORES, GPUS))
        assert after.cores >= found.cores and after.gpus >= found.gpus
        found = after
    waited = sum(passed * waiting for passed, _, waiting in looks)
    assert found.gpus == pytest.approx(waited * GPUS)
    assert found.cores >= waited * CORES - 1e-6
    assert found.cores <= waited * CORES + sum(used for _, used, _ in looks) + 1e-6


@given(LOOKS)
def test_where_nothing_is_reserved_only_what_is_used_counts(
    looks: list[tuple[float, float, float]],
) -> None:
    found = Idle(0.0, 0.0)
    for passed, used, waiting in looks:
        found = found.after(found.at + passed, found.used + used, waiting, Reserved())
    assert found.cores == pytest.approx(sum(used for _, used, _ in looks))
    assert found.gpus == 0


def told(store: Store) -> dict[str, dict[str, float]]:
    return Reader(store).look(time.time())


@pytest.mark.slow
def test_a_meter_writes_all_of_it_again_and_once_more_at_the_end(tmp_path: Path) -> None:
    """A store that fails for a while loses nothing: the next record has all of it."""
    folder = tmp_path / "store"
    folder.write_text("no folder: nothing can be written")
    began, began_at = time.monotonic(), time.time()
    meter = Meter(open_store(str(folder)), "sm_90", Reserved(2.0, 1.0), lambda: 1.0, 0.0)
    meter.begin()
    meter.begin()
    time.sleep(1.5)
    folder.unlink()
    wait_for(lambda: told(open_store(str(folder))), "it writes")
    meter.stop()
    most = time.monotonic() - began + 0.0005  # records are in whole milliseconds
    (found,) = told(open_store(str(folder))).values()
    assert 1.5 <= found["gpu"] <= most and 3.0 <= found["cpu"] <= 2 * most + time.process_time()
    record = json.loads(next((folder / idle.FOLDER).glob("*.json")).read_bytes())
    assert record["target"] == "sm_90" and began_at <= record["time"] <= time.time()


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_an_interval_and_its_next_life_counts_nothing_twice(
    redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than the time for which its processes lived, times what it reserved, and all that
    their last words say. Its gateway's ledger is opened anew at each look, as by a gateway that was
    restarted."""
    from stitchcore.device.host import host

    monkeypatch.setenv("STITCH_RESERVED_MILLICORES", "500")
    monkeypatch.setenv("STITCH_COMPILER_MILLICORES", "2500")
    cluster = Cluster(tmp_path, redis, host().target)

    def spent() -> float:
        ledger = Ledger(tmp_path / "ledger.sqlite")
        ledger.waited(told(cluster.store))
        found = {(device, purpose): s for device, purpose, s in ledger.spent()}
        ledger.close()
        return found.get(("cpu", "idle"), 0.0)

    began = time.monotonic()
    process = cluster.worker()
    wait_for(lambda: told(cluster.store), "its first word")
    time.sleep(2)
    cluster.kill(process)
    first = spent()
    assert 0 < first <= 3 * (time.monotonic() - began)
    assert spent() == first, "read again by a gateway that was restarted: nothing is added"
    lost = set(told(cluster.store))
    began = time.monotonic()
    process = cluster.worker()
    wait_for(lambda: len(told(cluster.store)) == 2, "its first word")
    time.sleep(3)
    process.terminate()
    process.wait(PATIENCE_SECONDS)
    (second,) = (said["cpu"] for life, said in told(cluster.store).items() if life not in lost)
    assert 3 * 3 <= second <= 3 * (time.monotonic() - began), "ended in order, it says all"
    assert spent() == pytest.approx(first + second)


def write(store: Store, name: str, **record: Any) -> None:
    store.write(json.dumps(record).encode(), idle.FOLDER, f"{name}.json")


def test_a_reader_takes_what_can_be_and_reads_ended_lives_once(tmp_path: Path) -> None:
    store, now = open_store(str(tmp_path)), time.time()
    alive, ended = "a" * 32, "b" * 32
    write(store, alive, time=now, idle={"cpu": 3.0, "gpu": 1.5})
    write(store, ended, time=now - SILENT_SECONDS - 1, idle={"cpu": 7.0})
    write(store, "../x".replace("/", "_"), time=now, idle={"cpu": 1.0})
    store.write(b"{", idle.FOLDER, f"{'c' * 32}.json")
    store.write(b"[1]", idle.FOLDER, f"{'d' * 32}.json")
    store.write(b"[" * 60_000, idle.FOLDER, f"{'e' * 32}.json")
    store.write(b" " * 2**20 + b"{}", idle.FOLDER, f"{'f' * 32}.json")
    reader = Reader(store)
    first = reader.look(now)
    assert first[alive] == {"cpu": 3.0, "gpu": 1.5} and first[ended] == {"cpu": 7.0}
    assert {*first} <= {alive, ended, *(letter * 32 for letter in "cdef")}
    assert not first.get("c" * 32) and not first.get("d" * 32)
    assert set(reader.look(now)) == {alive}


@pytest.mark.parametrize(
    "said",
    [None, 3, {"cpu": "1"}, {"cpu": -1.0}, {"cpu": 1e12}, {"cpu": float("nan")}, {"tpu": 1.0}],
)
def test_what_cannot_be_is_nothing(said: Any) -> None:
    assert seconds({"idle": said}) == {}


def test_records_of_workers_that_ended_long_ago_are_collected(tmp_path: Path) -> None:
    store, now = open_store(str(tmp_path)), time.time()
    write(store, "a" * 32, time=now, idle={"cpu": 3.0})
    assert not collect(store, now + ENDED_SECONDS - 60)
    assert [one.parts[0] for one in collect(store, now + ENDED_SECONDS + 60)] == [idle.FOLDER]
    assert store.list(idle.FOLDER) == ()
