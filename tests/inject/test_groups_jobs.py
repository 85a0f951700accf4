"""Real replicas: two processes of MultiWorkerMirroredStrategy, each the client of a gateway.

Their kernels round otherwise than TensorFlow's (handmade.py: `rounded`), so that a step which one
replica runs stitched and the other does not shows in the checksums of their variables for good.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inject import https_gateway as gateways
from tests.inject import replicas
from tests.inject.https_gateway import Asked, Reply
from tests.inject.replicas import Groups, Line, Rank, same_variables, wait_for
from tests.waiting import PATIENCE_SECONDS

STEPS, PAUSE = 900, 0.01


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> list[list[Line]]:
    """What replicas print without us: losses of their own, the same variables."""
    folder = tmp_path_factory.mktemp("untouched")
    with replicas.processes(folder, [{}, {}], STEPS, 0) as started:
        printed = replicas.finished(started)
        assert same_variables(started) == STEPS
    return printed


def parted(lines: list[Line], other: list[Line]) -> int:
    """The first step after which variables differ; the number of steps where none does."""
    pairs = list(zip(lines, other, strict=False))
    return next((n for n, (a, b) in enumerate(pairs) if a.checksum != b.checksum), len(pairs))


@pytest.mark.slow
def test_replicas_swap_at_one_step(
    native: Path, tmp_path: Path, key_file: Path, public_key: str, untouched: list[list[Line]]
) -> None:
    kernels = ["rounded", "rounded"]
    with replicas.ranks(tmp_path, key_file, public_key, kernels, STEPS, PAUSE) as (ranks, known):
        lines = replicas.finished(ranks)
    assert same_variables(ranks) == STEPS and known.state(1) == "committed"
    (agreed,) = {rank.event("group", round=1, do="swap")["agreed"] for rank in ranks}
    for rank, printed, before in zip(ranks, lines, untouched, strict=True):
        assert parted(printed, before) == agreed, "the first stitched step is step N"
        losses = [line.loss for line in before]
        assert [line.loss for line in printed] == pytest.approx(losses, rel=1e-5)
        assert rank.event("savings_total")["devices"] == len(os.sched_getaffinity(0)) / 2
    steps = [rank.event("end")["steps"][0] for rank in ranks]
    counts = {(one["original_steps"], one["stitched_steps"]) for one in steps}
    ((original, stitched),) = counts
    assert original + stitched == STEPS and stitched > 100 and original > agreed


@pytest.mark.nightly
def test_one_slow_replica_takes_all_back_at_one_step(
    native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    kernels = ["rounded", "slow"]
    with replicas.ranks(tmp_path, key_file, public_key, kernels, 10**6, PAUSE) as (ranks, known):
        wait_for(lambda: known.state(2) == "committed", ranks)
        back = max(group.step for (_, number), group in known.rounds.items() if number == 2)
        wait_for(lambda: len(ranks[0].lines()) > back + 50, ranks)
        events = [rank.event("group", round=2, do="back") for rank in ranks]
        for rank in ranks:
            assert rank.event("rolled_back")["reason"] in ("slower", "swap_group")
        assert any(rank.event("rolled_back")["reason"] == "slower" for rank in ranks)
        assert {event["agreed"] for event in events} == {back}
        assert same_variables(ranks) > back + 40


def stop_answering(asked: Asked, rank: int) -> Reply | None:
    return Reply(hang=600)


@pytest.mark.slow
def test_without_a_gateway_nobody_swaps(
    native: Path, tmp_path: Path, key_file: Path, public_key: str, untouched: list[list[Line]]
) -> None:
    kernels = ["rounded", "rounded"]
    with replicas.ranks(
        tmp_path, key_file, public_key, kernels, 100, PAUSE, fault=stop_answering
    ) as (ranks, _):
        assert replicas.finished(ranks) == [lines[:100] for lines in untouched]


@pytest.mark.slow
def test_a_gateway_that_dies_before_the_commit_leaves_all_as_they_were(
    native: Path, tmp_path: Path, key_file: Path, public_key: str, untouched: list[list[Line]]
) -> None:
    """All have been told N, and no confirmation arrives any more."""

    def fault(asked: Asked, rank: int) -> Reply | None:
        gone = asked.document.get("type") == "acknowledged" and "confirm" in asked.document
        return gateways.reply(503, {"reason": "unavailable"}, Retry_After="60") if gone else None

    kernels = ["rounded", "rounded"]
    with replicas.ranks(tmp_path, key_file, public_key, kernels, STEPS, PAUSE, fault=fault) as (
        ranks,
        known,
    ):
        lines = replicas.finished(ranks)
    assert lines == untouched
    for rank in ranks:
        refused = rank.event("refused", reason="swap_group")
        assert "without word of a commit" in refused["detail"]
        assert rank.event("group", do="drop")["agreed"] < STEPS
    assert known.state(1) in ("named", "aborted")


@pytest.mark.nightly
def test_replicas_with_two_artifacts_do_not_swap(
    native: Path, tmp_path: Path, key_file: Path, public_key: str, untouched: list[list[Line]]
) -> None:
    """As where their processors differ."""
    kernels = ["rounded", "other"]
    with replicas.ranks(tmp_path, key_file, public_key, kernels, 400, PAUSE) as (ranks, known):
        assert replicas.finished(ranks) == [lines[:400] for lines in untouched]
    assert known.state(1) == "aborted"
    for rank in ranks:
        assert "different artifacts" in rank.event("refused", reason="swap_group")["detail"]


def before_the_swap(known: Groups, ranks: list[Rank]) -> bool:
    return known.state(1) in ("named", "committed")


def after_the_swap(known: Groups, ranks: list[Rank]) -> bool:
    found = [group.step for group in known.rounds.values() if group.state == "committed"]
    return bool(found) and len(ranks[0].lines()) > found[0] + 20


def while_going_back(known: Groups, ranks: list[Rank]) -> bool:
    """One of them has slow kernels."""
    return known.state(2) in ("named", "committed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "victim", "kernels"),
    [
        pytest.param(before_the_swap, 1, ["rounded", "rounded"], marks=pytest.mark.nightly),
        (after_the_swap, 0, ["rounded", "rounded"]),
        pytest.param(while_going_back, 0, ["rounded", "slow"], marks=pytest.mark.nightly),
    ],
    ids=["before N", "after N", "while one is slow"],
)
def test_the_death_of_a_replica_is_what_it_is_without_us(
    moment: Callable[[Groups, list[Rank]], bool],
    victim: int,
    kernels: list[str],
    native: Path,
    tmp_path: Path,
    key_file: Path,
    public_key: str,
    untouched: list[list[Line]],
) -> None:
    """The other fails in its collective, its variables equal to the dead one's up to there."""
    with replicas.ranks(tmp_path, key_file, public_key, kernels, 10**6, PAUSE) as (ranks, known):
        wait_for(lambda: moment(known, ranks), ranks)
        ranks[victim].process.send_signal(signal.SIGKILL)
        assert ranks[1 - victim].process.wait(PATIENCE_SECONDS) == 1, "as TensorFlow has it"
        steps = same_variables(ranks)
    assert "Collective ops is aborted" in ranks[1 - victim].err.read_text()
    swapped = parted(ranks[0].lines()[:steps], untouched[0]) < steps
    assert swapped == (moment is not before_the_swap)
