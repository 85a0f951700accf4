"""Real training programs under the hook: same losses, kernels really run, nothing ever hurts."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stitchcore.inject import crash_breaker, plugin, timer, verdicts
from tests import tiers
from tests.inject import handmade, jobs
from tests.inject.conftest import Answer, Submit

VERSIONS = ("2.21", "2.15")
SCRIPTS = {"function_step.py": 30, "session.py": 30, "keras_fit.py": 3}
FUNCTION_AND_SESSION = pytest.mark.parametrize(
    ("script", "version"),
    tiers.nightly_but(
        ("function_step.py", "2.21"),
        ("session.py", "2.15"),
        of=itertools.product(("function_step.py", "session.py"), VERSIONS),
    ),
)
UNSHARED = {"function_step.py": 3, "session.py": 1, "keras_fit.py": 4}
"""Updated variables whose value no gradient reads (of the first layer, and what is added). Another
variable's update may run beside the gradient that reads its value, and then, as TensorFlow does,
gives the variable a buffer of its own: whether it does is left to the executor."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "version"),
    tiers.nightly_but(
        *((script, "2.21") for script in SCRIPTS),
        ("keras_fit.py", "2.15"),
        of=itertools.product(SCRIPTS, VERSIONS),
    ),
)
def test_cache_hit_swaps_before_the_first_step(
    version: str, script: str, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    count = SCRIPTS[script]
    plain = jobs.untouched(version, script, count)
    answered(version, script, "good")
    done = jobs.run(jobs.python_of(version), script, count, store=store, public_key=public_key)
    assert done.code == 0 and done.complaints() == []
    assert done.losses == pytest.approx(plain, rel=1e-5)
    end = done.event("end")
    (steps,) = end["steps"]
    # Half of the steps are stitched while both are compared.
    assert done.event("swap_ok") and steps["stitched_steps"] >= 15
    # A first update may find the buffer shared with the initial value.
    least = UNSHARED[script] * (steps["stitched_steps"] - 1)
    assert end["counters"]["in_place"] >= least


@pytest.mark.slow
def test_kernels_really_run(native: Path, store: Path, answered: Answer, public_key: str) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    answered("2.21", "function_step.py", "wrong")
    done = jobs.run(
        jobs.python_of("2.21"), "function_step.py", 30, store=store, public_key=public_key
    )
    assert done.losses[0] == plain[0] and abs(done.losses[20] - plain[20]) > 1e-2


@pytest.mark.slow
@FUNCTION_AND_SESSION
def test_late_swap(
    version: str, script: str, native: Path, store: Path, key_file: Path, public_key: str
) -> None:
    plain = jobs.untouched(version, script, 400)
    with handmade.at_work(store, key_file, "good"):
        done = jobs.run(
            jobs.python_of(version), script, 400, 0.02, store=store, public_key=public_key
        )
    assert done.code == 0
    assert done.event("submitted")["time"] < done.event("swap_begin")["time"]
    assert done.losses == pytest.approx(plain, rel=1e-5)
    assert done.event("end")["counters"]["in_place"] > 0
    assert done.event("savings")["pairs"] >= 2


@pytest.mark.slow
@FUNCTION_AND_SESSION
def test_a_step_that_an_earlier_start_has_kept_begins_stitched(
    version: str, script: str, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    """Without its original, which TensorFlow then never builds; and is compared after a while."""
    plain = jobs.untouched(version, script, 400)
    answered(version, script, "good")
    (digest,) = (path.stem for path in (store / "answers").iterdir())
    (artifact,) = (store / "artifacts").iterdir()
    holds_for = verdicts.circumstances(artifact.name, ())
    faster = timer.Comparison(pairs=9, original=2e6, ratio=0.7, low=0.6, high=0.8, least=0.5)
    found = verdicts.Verdict("before", faster, plugin.POOL)

    def run(session: str, **settings: str) -> tuple[jobs.Run, dict[str, Any]]:
        verdicts.remember(str(store), digest, holds_for, found, timer.SLOWER)
        named = {"store": store, "session": session, "public_key": public_key, **settings}
        done = jobs.run(jobs.python_of(version), script, 400, 0.002, **named)
        assert done.code == 0 and done.complaints() == []
        assert done.losses == pytest.approx(plain, rel=1e-5)
        (steps,) = done.event("end")["steps"]
        return done, steps

    done, steps = run("relies")
    assert (steps["original_steps"], steps["stitched_steps"]) == (0, 400)
    assert done.event("savings")["measured_in"] == "before"
    assert done.event("savings")["interval"] == [0.6, 0.8]
    done, steps = run("compares", control="0.5")
    assert steps["original_steps"] > 0
    assert "measured_in" not in done.event("savings")


@pytest.mark.slow
def test_a_variable_whose_value_is_held_splits_no_region(
    native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    """Its new values come from the pool, although all else comes from TensorFlow's allocator."""
    plain = jobs.untouched("2.21", "held_step.py", 30)
    answered("2.21", "held_step.py", "good")
    done = jobs.run(jobs.python_of("2.21"), "held_step.py", 30, store=store, public_key=public_key)
    assert done.code == 0 and done.complaints() == []
    assert done.losses == pytest.approx(plain, rel=1e-5)
    (steps,) = done.event("end")["steps"]
    counters = done.event("end")["counters"]
    assert counters["in_place"] == 0
    assert counters["fresh"] + counters["reused"] == 3 * steps["stitched_steps"] >= 45


@pytest.mark.slow
def test_steps_inside_a_loop(native: Path, store: Path, key_file: Path, public_key: str) -> None:
    """The timer passes once per training step, not once per call."""
    python, script = jobs.python_of("2.21"), "loop_step.py"
    plain = jobs.run(python, script, 12)
    first = jobs.run(python, script, 12, store=store, mode="observe", session="first")
    assert first.losses == plain.losses
    (steps,) = first.event("end")["steps"]
    assert steps["original_steps"] == 120
    assert handmade.answer(store, key_file, "good") > 0
    done = jobs.run(python, script, 12, store=store, public_key=public_key)
    assert done.code == 0
    assert done.losses == pytest.approx(plain.losses, rel=1e-5)
    (steps,) = done.event("end")["steps"]
    assert steps["stitched_steps"] + steps["original_steps"] == 120
    assert done.event("end")["counters"]["in_place"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nested", "bare"])
def test_steps_under_xla_are_lifted(
    how: str, native: Path, store: Path, key_file: Path, public_key: str
) -> None:
    """Handed in without a step outside XLA, then stitched, and compared with XLA's step."""
    python, script = jobs.python_of("2.21"), "jit_step.py"
    plain = jobs.untouched("2.21", script, 60, 0, how)
    first = jobs.run(python, script, 5, 0, how, store=store, mode="observe", session="first")
    assert first.losses == list(plain[:5])
    assert handmade.answer(store, key_file, "good") > 0
    assert all(json.loads(path.read_text())["xla"] for path in store.glob("requests/*/meta.json"))
    done = jobs.run(python, script, 60, 0, how, store=store, public_key=public_key)
    assert done.code == 0
    assert done.losses == pytest.approx(plain, rel=1e-5)
    assert done.event("end")["counters"]["in_place"] > 0
    (steps,) = done.event("end")["steps"]
    assert steps["stitched_steps"] > 5
    assert steps["original_steps"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nested", "bare"])
def test_an_older_versions_steps_stay_under_xla(how: str, native: Path, store: Path) -> None:
    """XLA holds the least memory there: the step is refused, and nothing is handed in."""
    python = jobs.python_of("2.15")
    plain = jobs.run(python, "jit_step.py", 30, 0, how)
    done = jobs.run(python, "jit_step.py", 30, 0, how, store=store)
    assert done.code == 0 and done.losses == plain.losses
    assert len(done.lines) == 1 and "memory" in done.lines[0]
    assert done.event("refused")["reason"] == "memory" and "submitted" not in done.kinds()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nested", "bare"])
def test_xla_step_without_an_answer_is_bit_identical(how: str, native: Path, store: Path) -> None:
    python = jobs.python_of("2.21")
    plain = jobs.untouched("2.21", "jit_step.py", 60, 0, how)
    done = jobs.run(python, "jit_step.py", 30, 0, how, store=store, wait="0.3")
    assert done.code == 0
    assert tuple(done.losses) == plain[:30]
    assert len(done.lines) == 1
    assert "deadline" in done.lines[0]


BROKEN = {
    "truncated": "bad_artifact",
    "unsigned": "bad_signature",
    "level": "wrong_target",
}


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BROKEN)
def test_broken_artifact_leaves_the_job_alone(
    behaviour: str, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    answered("2.21", "function_step.py", behaviour)
    done = jobs.run(
        jobs.python_of("2.21"), "function_step.py", 30, store=store, public_key=public_key
    )
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and BROKEN[behaviour] in done.lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("version", tiers.nightly_but("2.21", of=VERSIONS))
def test_deadline_passes(version: str, native: Path, store: Path) -> None:
    plain = jobs.untouched(version, "function_step.py", 30)
    done = jobs.run(jobs.python_of(version), "function_step.py", 30, store=store, wait="0.5")
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "deadline" in done.lines[0]


@pytest.mark.slow
def test_nothing_answers(native: Path, store: Path) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    done = jobs.run(jobs.python_of("2.21"), "function_step.py", 30, store=store)
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "no_artifact" in done.lines[0]


@pytest.mark.slow
def test_store_unreadable(native: Path, store: Path) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    (store / "requests").write_text("not a folder")
    done = jobs.run(jobs.python_of("2.21"), "function_step.py", 30, store=store)
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "store_unreadable" in done.lines[0]


@pytest.mark.slow
def test_worker_refuses(submitted: Submit, store: Path) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    submitted("2.21", "function_step.py", store)
    (store / "answers").mkdir()
    for request in (store / "requests").iterdir():
        text = '{"status": "refused", "reason": "not_profitable", "detail": "nothing to win"}'
        (store / "answers" / f"{request.name}.json").write_text(text)
    done = jobs.run(jobs.python_of("2.21"), "function_step.py", 30, store=store, session="t")
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "not_profitable" in done.lines[0]


@pytest.mark.slow
def test_exception_in_the_hook(native: Path, store: Path, tmp_path: Path) -> None:
    """A plug-in that is no library: nothing in the hook can work."""
    for name in ("stitch_plugin.so", "shim_tf221.so"):
        (tmp_path / name).write_bytes(b"not a library")
    plain = jobs.untouched("2.21", "function_step.py", 30)
    done = jobs.run(
        jobs.python_of("2.21"), "function_step.py", 30, store=store, plugin=str(tmp_path)
    )
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "hook_error" in done.lines[0]


@pytest.mark.slow
def test_slow_kernel_is_rolled_back(
    native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    answered("2.21", "function_step.py", "slow")
    done = jobs.run(
        jobs.python_of("2.21"), "function_step.py", 250, store=store, public_key=public_key
    )
    assert done.code == 0
    back = done.event("rolled_back")
    assert back["stitched_ns"] > back["baseline_ns"] and back["reason"] == "slower"
    assert len(done.lines) == 1 and "slower" in done.lines[0]


@pytest.mark.slow
def test_a_policy_that_asks_for_a_gain_is_heeded(
    native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    """The same kernels as TensorFlow's, more or less: none takes half the time."""
    answered("2.21", "function_step.py", "good")
    done = jobs.run(
        jobs.python_of("2.21"), "function_step.py", 400, store=store, public_key=public_key,
        guard="0.5",
    )  # fmt: skip
    assert done.code == 0
    back = done.event("rolled_back")
    assert back["stitched_ns"] > 0.5 * back["baseline_ns"] and back["reason"] == "slower"


@pytest.mark.slow
def test_crash_disables_the_swap_at_the_next_start(
    native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    answered("2.21", "function_step.py", "crash")
    python = jobs.python_of("2.21")
    crashed = jobs.run(python, "function_step.py", 30, store=store, public_key=public_key)
    assert crashed.code != 0 and crashed.event("swap_begin")
    done = jobs.run(
        python, "function_step.py", 30, store=store, public_key=public_key, session="next"
    )
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "crashed_before" in done.lines[0]


FAILING = {"fails": "kernel gave", "guard": "has another shape", "fails_late": "kernel gave"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "script"),
    [*((one, "function_step.py") for one in FAILING), ("fails", "session.py")],
)
def test_failing_kernel_disables_the_swap_at_the_next_start(
    behaviour: str, script: str, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    """An artifact without functions that do a kernel's work (no worker makes one): the job ends as
    by a mistake of the user's own, with exit code 1, but that is remembered."""
    count = 100
    plain = jobs.untouched("2.21", script, count)
    answered("2.21", script, behaviour)
    python = jobs.python_of("2.21")
    failed = jobs.run(python, script, count, store=store, public_key=public_key)
    assert failed.code == 1
    assert ("swap_ok" in failed.kinds()) == (behaviour == "fails_late")
    assert FAILING[behaviour] in failed.event("disabled")["detail"]
    crash_breaker.job_ended(str(store), "s", failed.code)
    done = jobs.run(python, script, count, store=store, public_key=public_key, session="next")
    assert done.code == 0 and tuple(done.losses) == plain
    assert len(done.lines) == 1 and "crashed_before" in done.lines[0]
    assert FAILING[behaviour] in done.lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("raise_at", [0, 1, 3])
def test_a_mistake_of_the_users_own_disables_nothing(
    raise_at: int, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    answered("2.21", "function_step.py", "good")
    python = jobs.python_of("2.21")
    failed = jobs.run(
        python, "function_step.py", 30, 0, raise_at, store=store, public_key=public_key
    )
    assert failed.code == 1 and len(failed.losses) == raise_at
    assert ("swap_ok" in failed.kinds()) == (raise_at > 0)
    crash_breaker.job_ended(str(store), "s", failed.code)
    done = jobs.run(
        python, "function_step.py", 30, store=store, public_key=public_key, session="next"
    )
    assert done.code == 0 and done.complaints() == []
    assert done.event("end")["counters"]["in_place"] > 20


@pytest.mark.slow
def test_off_and_no_store_do_nothing(native: Path, store: Path) -> None:
    plain = jobs.untouched("2.21", "function_step.py", 30)
    done = jobs.run(jobs.python_of("2.21"), "function_step.py", 30, store=store, mode="off")
    assert tuple(done.losses) == plain and done.lines == [] and done.events == []
    assert os.listdir(store) == []
    shutil.rmtree(store)


@pytest.mark.slow
@FUNCTION_AND_SESSION
def test_a_job_tells_where_the_time_of_its_step_goes(
    version: str, script: str, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    """Of both arms, by TensorFlow's own record; the losses are those of a job that nobody records,
    and nothing is written to its log."""
    count = 90
    plain = jobs.untouched(version, script, count)
    answered(version, script, "good")
    done = jobs.run(
        jobs.python_of(version), script, count, store=store, public_key=public_key, control="0.5"
    )
    assert done.code == 0 and done.complaints() == []
    assert done.losses == pytest.approx(plain, rel=1e-5)
    parts = {event["arm"]: event for event in done.events if event["type"] == "parts"}
    assert set(parts) == {"original", "stitched"}
    for told in parts.values():
        assert sum(told["shares"].values()) == pytest.approx(1)
        assert 0 < told["call"] <= 1
        assert told["shares"]["matrix"] > 0 and told["shares"]["executor"] > 0
        assert told["shares"]["memory"] > 0
