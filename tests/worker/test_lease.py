"""Leases against a model: one holder at a time, growing tokens, also when their keeper forgets."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stitch_worker.lease import FolderLeases, Keeper, Lease, Leases, RedisLeases, open_leases
from tests.waiting import wait_for
from tests.worker.conftest import Redis

KEY = "k"


class LeaseMachine(RuleBasedStateMachine):
    """Acquire, renew, release, expiry and loss of all data, in any order."""

    leases: Leases

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Lease] = []
        self.holder: Lease | None = None
        self.last = 0  # the largest token that the keeper remembers
        self.highest = 0  # ... and that a store remembers (the floor)

    def expire(self) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        raise NotImplementedError

    @rule()
    def acquire(self) -> None:
        lease = self.leases.acquire(KEY, self.highest)
        assert (lease is None) == (self.holder is not None)
        if lease is not None:
            assert lease.token > max(self.last, self.highest)
            assert lease.owner not in {one.owner for one in self.given}
            self.given.append(lease)
            self.holder, self.last, self.highest = lease, lease.token, lease.token

    @rule(which=st.integers(0, 3))
    def renew(self, which: int) -> None:
        if not self.given:
            return
        lease = self.given[-1 - which % len(self.given)]
        free = self.holder is None and self.last <= lease.token and self.may_take_back(lease)
        expected = self.holder is lease or free
        assert self.leases.renew(lease) == expected
        if expected:
            self.holder, self.last = lease, lease.token

    def may_take_back(self, lease: Lease) -> bool:
        del lease
        return True

    @rule(which=st.integers(0, 3))
    def release(self, which: int) -> None:
        if self.given:
            lease = self.given[-1 - which % len(self.given)]
            self.leases.release(lease)
            if self.holder is lease or lease.token == self.last:  # expired, and nobody's since
                self.released(lease)
            if self.holder is lease:
                self.holder = None

    def released(self, lease: Lease) -> None:
        del lease

    @rule()
    def expires(self) -> None:
        self.expire()
        self.holder = None

    @rule()
    def forgets(self) -> None:
        self.forget()
        self.holder, self.last = None, 0


class FolderMachine(LeaseMachine):
    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1_000_000.0
        self.gone: set[str] = set()
        self.leases = FolderLeases(self.folder, 15, lambda: self.now)

    def expire(self) -> None:
        self.now += 15.001

    def forget(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()
        self.gone.clear()

    def released(self, lease: Lease) -> None:
        self.gone.add(lease.owner)

    def may_take_back(self, lease: Lease) -> bool:
        """What was given back stays so, and a record of another's is no record of this one's."""
        return lease.owner not in self.gone and self.last in (0, lease.token)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


@pytest.mark.slow
def test_a_folder_of_leases_does_as_the_model() -> None:
    run_state_machine_as_test(
        FolderMachine, settings=settings(max_examples=150, stateful_step_count=30)
    )


def test_leases_in_redis_do_as_the_model(redis: Redis) -> None:
    import redis as client_library

    client = client_library.Redis.from_url(redis.url)

    class RedisMachine(LeaseMachine):
        @initialize()
        def open(self) -> None:
            client.flushall()
            self.leases = RedisLeases(redis.url, 60)

        def expire(self) -> None:
            client.delete(f"stitch:lease:{KEY}")  # as its time to live does

        def forget(self) -> None:
            client.flushall()

    run_state_machine_as_test(
        RedisMachine, settings=settings(max_examples=40, stateful_step_count=30)
    )


def test_a_lease_ends_by_itself_and_tokens_outlive_it(redis: Redis, tmp_path: Path) -> None:
    for short, long in (
        (RedisLeases(redis.url, 0.3), RedisLeases(redis.url, 60)),
        (FolderLeases(tmp_path, 0.3), FolderLeases(tmp_path, 60)),
    ):
        began = time.monotonic()
        first = short.acquire(KEY)
        assert first is not None
        second = wait_for(lambda lasting=long: lasting.acquire(KEY), "its end")
        assert second.token > first.token and time.monotonic() - began > 0.25
        assert short.acquire(KEY) is None and not short.renew(first)
        third = short.acquire("other", floor=10**15)
        assert third is not None and third.token > 10**15


def test_a_keeper_renews_until_the_end_and_says_when_it_lost(tmp_path: Path) -> None:
    leases = FolderLeases(tmp_path, 60)
    lease = leases.acquire(KEY)
    assert lease is not None
    [file] = tmp_path.iterdir()
    seen: set[str] = set()

    def renewed() -> bool:
        seen.add(file.read_text())
        return len(seen - {""}) > 4  # it is empty for a moment

    with Keeper(leases, lease, 0.4) as keeper:
        wait_for(renewed, "it is prolonged again and again")
        assert leases.acquire(KEY) is None
        assert not keeper.lost.is_set()
        other = None
        while other is None:  # the keeper takes a lease that nobody has: it may come first
            for file in tmp_path.iterdir():
                file.unlink(missing_ok=True)
            other = leases.acquire(KEY, lease.token)
        assert keeper.lost.wait(60)
        assert not keeper.check()
    assert leases.renew(other), "the loser's end must not free the winner's lease"


def test_a_keeper_goes_on_where_nobody_can_be_asked(redis: Redis) -> None:
    leases = RedisLeases(redis.url, 60)
    lease = leases.acquire(KEY)
    assert lease is not None
    with Keeper(leases, lease, 60) as keeper:
        redis.kill()
        assert keeper.check()
        with pytest.raises(OSError, match="Redis"):
            leases.acquire(KEY)
        redis.start()
        assert keeper.check()
        assert leases.acquire(KEY) is None, "it took its lease again"


def _count(folder: str, barrier: Any, wins: Any) -> None:
    leases = FolderLeases(Path(folder), 60)
    barrier.wait()
    if leases.acquire(KEY) is not None:
        wins.append(1)


@pytest.mark.slow
def test_of_many_processes_one_gets_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        wins, barrier = manager.list(), manager.Barrier(4)
        processes = [
            context.Process(target=_count, args=(str(tmp_path), barrier, wins)) for _ in range(4)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert len(wins) == 1


def test_of_many_threads_one_gets_it_from_redis(redis: Redis) -> None:
    wins: list[Lease] = []
    barrier = threading.Barrier(16)

    def one() -> None:
        leases = RedisLeases(redis.url, 60)
        barrier.wait()
        if (lease := leases.acquire(KEY)) is not None:
            wins.append(lease)

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1


def test_where_leases_are_kept_is_said_or_refused(tmp_path: Path) -> None:
    assert isinstance(open_leases("redis://127.0.0.1:1/0", str(tmp_path)), RedisLeases)
    assert isinstance(open_leases("amqp://localhost//", str(tmp_path)), FolderLeases)
    with pytest.raises(ValueError, match="leases need"):
        open_leases("amqp://localhost//", "s3://bucket/store")
