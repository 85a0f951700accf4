"""Real training programs as clients of a gateway, with nothing around them but PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stitchcore.artifact import sign
from tests import fork_server, lean, tiers
from tests.inject import https_gateway as gateways
from tests.inject import jobs
from tests.inject.handmade_gateway import HandmadeGateway
from tests.inject.https_gateway import Asked, Reply, Server
from tests.waiting import RUN_SECONDS


def run(
    server: Server,
    cache: Path,
    public_key: str,
    *arguments: object,
    script: str = "function_step.py",
    session: str = "s",
    version: str = "2.21",
    **settings: str,
) -> jobs.Run:
    """The program as its user starts it, but for PYTHONPATH and where the gateway is."""
    extra = server.settings(
        STITCH_PUBLIC_KEYS=public_key,
        STITCH_STORE=str(cache),
        PYTHONPATH=str(jobs.BOOTSTRAP),
        STITCH_SESSION=session,
        **{f"STITCH_{name.upper()}": value for name, value in settings.items()},
    )
    command = [jobs.python_of(version), str(jobs.SCRIPTS / script)]
    done = fork_server.run([*command, *map(str, arguments)], lean.environment(**extra))
    lines = [line for line in done.stderr.splitlines() if "stitch" in line]
    path = cache / "sessions" / session / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [float(line) for line in done.stdout.splitlines()]
    return jobs.Run(done.returncode, losses, lines, events)


MOST_STEPS = 400


def untouched(count: int, version: str = "2.21") -> list[float]:
    """Losses of the first `count` steps without us."""
    losses = jobs.untouched(version, "function_step.py", MOST_STEPS)
    assert len(losses) == MOST_STEPS >= count
    return list(losses[:count])


class Cases:
    """Jobs whose times nobody looks at, two at a time: most of each is TensorFlow's import."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._started: dict[str, Future[jobs.Run]] = {}
        self.key_file = folder / "key"
        self.public_key = sign.public_hex(sign.load_or_create_key(self.key_file))

    def start(self, names: Iterable[str], case: Callable[[Cases, str, Path], jobs.Run]) -> None:
        for name in names:
            if name not in self._started:
                (self._folder / name).mkdir()
                job = self._pool.submit(case, self, name, self._folder / name)
                self._started[name] = job

    def done(self, name: str) -> jobs.Run:
        return self._started[name].result(timeout=RUN_SECONDS)


@pytest.fixture(scope="module")
def cases(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


@pytest.mark.slow
@pytest.mark.parametrize("version", tiers.nightly_but("2.21", of=("2.21", "2.15")))
def test_a_job_is_swapped_in_mid_run_and_reports(
    version: str, native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    answers = HandmadeGateway(tmp_path / "store", key_file, "good")
    with gateways.serve(tmp_path / "g", answers) as server:
        done = run(server, tmp_path / "cache", public_key, 400, 0.02, version=version)
    assert done.code == 0 and done.complaints() == []
    assert done.losses == pytest.approx(untouched(400, version), rel=1e-5)
    assert done.event("submitted")["time"] < done.event("swap_begin")["time"]
    (steps,) = done.event("end")["steps"]
    assert steps["stitched_steps"] > 50 and steps["original_steps"] > 50
    timed, *swaps = (event for event in answers.events if event["type"] != "refused")
    assert timed["type"] == "timed" and "key" not in timed
    assert [event["type"] for event in swaps] == ["may-swap", "swap-begin", "swap-ok"]
    assert all(event["key"] == answers.digest for event in swaps)


def saved_of(answers: HandmadeGateway) -> dict[str, Any]:
    """The last savings that the gateway was sent."""
    assert [one["seq"] for one in answers.savings] == sorted(one["seq"] for one in answers.savings)
    return answers.savings[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "count", "argument"),
    [
        pytest.param("slow_epoch.py", 700, 200, marks=pytest.mark.nightly),
        ("loop_step.py", 150, 0.05),  # ten steps a call: what passes between calls is no step's own
    ],
)
def test_the_same_graph_saves_nothing(
    script: str,
    count: int,
    argument: float,
    native: Path,
    tmp_path: Path,
    key_file: Path,
    public_key: str,
) -> None:
    """An A/A artifact, also with a slow first epoch. Zero is within the interval in 95 of 100 jobs
    (test_gateway_savings.py counts); here is one, on a busy machine: within three intervals."""
    answers = HandmadeGateway(tmp_path / "store", key_file, "same")
    with gateways.serve(tmp_path / "g", answers) as server:
        done = run(server, tmp_path / "cache", public_key, count, argument, script=script)
    assert done.code == 0 and done.complaints() == [], done.lines
    assert tuple(done.losses) == jobs.untouched("2.21", script, count)
    last = saved_of(answers)
    low, high = last["interval"]
    assert last["pairs"] >= 6 and last["key"] == answers.digest and last["devices"] >= 1
    assert low - (high - low) <= 0 <= high + (high - low), last
    assert last["steps"] == done.event("end")["steps"][0]["stitched_steps"]
    assert last["stitched_ns"] < last["steps"] * 100e6


@pytest.mark.slow
def test_a_cache_hit_runs_its_own_baseline_first(
    native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    answers = HandmadeGateway(tmp_path / "store", key_file, "good")
    with gateways.serve(tmp_path / "g", answers) as server:
        run(server, tmp_path / "cache", public_key, 60, 0.05)
        done = run(server, tmp_path / "cache", public_key, 70, 0.05, session="t", wait="60")
    assert done.code == 0 and done.losses == pytest.approx(untouched(70), rel=1e-5)
    (steps,) = done.event("end")["steps"]
    assert 0 < steps["stitched_steps"] <= 20 and steps["original_steps"] >= 50
    assert [path.split()[0] for path in server.paths()].count("GET") >= 2
    unmeasured = [e for e in done.events if e.get("reason") == "unmeasured"]
    assert len(unmeasured) == 1  # too few pairs to tell: counted, and nothing claimed
    assert saved_of(answers).get("interval") is None
    assert saved_of(answers)["baseline_ns"] == saved_of(answers)["stitched_ns"]


@pytest.mark.slow
def test_a_crash_after_a_swap_is_told_and_not_repeated(
    native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    answers = HandmadeGateway(tmp_path / "store", key_file, "crash")
    with gateways.serve(tmp_path / "g", answers) as server:
        first = run(server, tmp_path / "cache", public_key, 400, 0.02)
        assert first.code == -11 and first.event("swap_begin")
        done = run(server, tmp_path / "cache", public_key, 100, 0.02, session="t")
    assert done.code == 0 and done.losses == untouched(100)
    assert len(done.lines) == 1 and "crashed_before" in done.lines[0]
    told = [(event["type"], event.get("key")) for event in answers.events]
    assert ("crashed-before", answers.digest) in told and "swap_begin" not in done.kinds()


class Cluster(HandmadeGateway):
    """It keeps the breaker (the ledger's is tested by itself): whoever has begun a swap and says no
    more of it, has died."""

    def __call__(self, asked: Asked) -> Reply:
        if asked.document.get("type") == "may-swap":
            session = asked.document["session"]
            begun = {one["session"] for one in self.events if one["type"] == "may-swap"}
            settled = {one["session"] for one in self.events if one["type"] == "swap-ok"}
            self.events.append(asked.document)
            if begun - settled - {session}:
                return gateways.reply(200, {"status": "crashed"})
        return super().__call__(asked)


@pytest.mark.slow
def test_a_crash_is_not_repeated_in_the_next_pod(
    native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    """`restartPolicy: Never`: the next pod has another disk."""
    answers = Cluster(tmp_path / "store", key_file, "crash")
    with gateways.serve(tmp_path / "g", answers) as server:
        first = run(server, tmp_path / "cache", public_key, 400, 0.02)
        asked = [event["type"] for event in answers.events]
        assert first.code == -11 and "may-swap" in asked, "before the first stitched step"
        done = run(server, tmp_path / "other", public_key, 200, 0.02, session="t")
    assert done.code == 0 and done.losses == untouched(200)
    assert len(done.lines) == 1 and "crashed_before" in done.lines[0]
    assert "swap_begin" not in done.kinds()


@pytest.mark.slow
def test_what_a_slow_kernel_cost_is_reported_as_lost(
    native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    answers = HandmadeGateway(tmp_path / "store", key_file, "slow")
    with gateways.serve(tmp_path / "g", answers) as server:
        done = run(server, tmp_path / "cache", public_key, 200, 0.02)
    assert done.code == 0 and done.losses == pytest.approx(untouched(200), rel=1e-5)
    assert "rolled-back" in [event["type"] for event in answers.events]
    last = saved_of(answers)
    (steps,) = done.event("end")["steps"]
    excess = steps["stitched_steps"] * (steps["stitched_ns"] - steps["original_ns"])
    lost = last["lost_ns"] + last["stitched_ns"] - last["baseline_ns"]
    assert last["steps"] == steps["stitched_steps"] and lost > 0.3 * excess > 0


BROKEN = {
    "truncated": "bad_artifact",
    "unsigned": "bad_signature",
    "level": "wrong_target",
    "graph": "bad_artifact",
    "version": "bad_artifact",
}


def given_a_bad_artifact(cases: Cases, behaviour: str, folder: Path) -> jobs.Run:
    answers = HandmadeGateway(folder / "store", cases.key_file, behaviour)
    with gateways.serve(folder / "g", answers) as server:
        done = run(server, folder / "cache", cases.public_key, 100, 0.02, wait="60")
    left = [one for one in answers.events if one["type"] == "refused" and one["graph"]]
    told = [(one["reason"], one.get("final")) for one in left]
    assert told == [(BROKEN[behaviour], True)], "the gateway is told why, once"
    return done


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BROKEN)
def test_a_bad_artifact_leaves_the_job_as_it_was(behaviour: str, cases: Cases) -> None:
    cases.start(BROKEN, given_a_bad_artifact)
    done = cases.done(behaviour)
    assert done.code == 0 and done.losses == untouched(100)
    assert BROKEN[behaviour] in done.lines[0] and len(done.lines) == 1
    assert "swap_begin" not in done.kinds()


@pytest.mark.slow
def test_a_revoked_artifact_is_taken_out_of_a_running_job(
    native: Path, tmp_path: Path, key_file: Path, public_key: str
) -> None:
    answers = HandmadeGateway(tmp_path / "store", key_file, "good")

    def answer(asked: Asked) -> Reply:
        if asked.document.get("type") == "swap-ok":
            answers.revoked.append(answers.digest)
        return answers(asked)

    with gateways.serve(tmp_path / "g", answer) as server:
        done = run(server, tmp_path / "cache", public_key, 400, 0.02)
    assert done.code == 0 and done.losses == pytest.approx(untouched(400), rel=1e-5)
    assert done.event("disabled")["reason"] == "revoked"
    told = [event for event in answers.events if event["type"] != "refused"]
    assert (told[-1]["type"], told[-1]["reason"]) == ("rolled-back", "revoked")
    (steps,) = done.event("end")["steps"]
    assert 20 <= steps["stitched_steps"] < 200


GATEWAYS = {
    "hangs": Reply(hang=600),
    "lies": gateways.reply(200, {"key": "../../x"}),
}


NOBODY = "nobody"


def given_a_bad_gateway(cases: Cases, how: str, folder: Path) -> jobs.Run:
    with gateways.serve(folder / "g", lambda _: GATEWAYS[how]) as server:
        if how == NOBODY:
            server.url = "https://127.0.0.1:9"
        return run(server, folder / "cache", cases.public_key, 100, 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*GATEWAYS, NOBODY])
def test_a_bad_gateway_leaves_the_job_bit_identical(how: str, cases: Cases) -> None:
    said = {"lies": "gateway_error", NOBODY: "gateway_unreachable"}
    cases.start([*GATEWAYS, NOBODY], given_a_bad_gateway)
    done = cases.done(how)
    assert done.code == 0 and done.losses == untouched(100)
    assert len(done.lines) == 1 and said.get(how, "no_artifact") in done.lines[0], done.lines


@pytest.mark.slow
def test_without_its_settings_a_gateway_is_named_in_one_line(native: Path, tmp_path: Path) -> None:
    extra = {"STITCH_GATEWAY": "https://127.0.0.1:9", "PYTHONPATH": str(jobs.BOOTSTRAP)}
    done = subprocess.run(
        [jobs.python_of("2.21"), "-c", "import tensorflow; print(1)"],
        env=lean.environment(**extra),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert [line for line in done.stderr.splitlines() if "STITCH_CA" in line]
    assert os.listdir(tmp_path) == []
