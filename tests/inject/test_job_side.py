"""The job side's own rules: reasons, standard library only, settings, breaker, statistics."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.inject import (
    build,
    client,
    plugin,
    program,
    reasons,
    records,
    settings,
    step_monitor,
    target,
    timer,
)
from stitchcore.inject import crash_breaker as guard
from stitchcore.inject.client import Artifact
from stitchcore.inject.plugin import Interval
from stitchcore.inject.program import Program, admit

INJECT = Path(build.__file__).parent
MODULES = sorted(path for path in INJECT.glob("*.py"))


IMPORT_ALL = """
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("stitch_inject", sys.argv[1] + "/__init__.py",
                                              submodule_search_locations=[sys.argv[1]])
module = importlib.util.module_from_spec(spec); sys.modules["stitch_inject"] = module
spec.loader.exec_module(module)
for name in sys.argv[2:]: importlib.import_module("stitch_inject." + name)
"""


def interpreter(version: str) -> str:
    """A Python of that version; a shim that cannot start does not count."""
    candidates = [shutil.which(f"python{version}")]
    candidates += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in filter(None, candidates):
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    pytest.skip(f"no python{version}: install it (pyenv install {version})")


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_old_and_new_python(version: str) -> None:
    python = interpreter(version)
    names = [path.stem for path in MODULES if path.stem != "__init__"]
    done = subprocess.run(
        [python, "-I", "-c", IMPORT_ALL, str(INJECT), *names], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def bootstrap(tmp_path: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STITCH_STORE": str(tmp_path), **environment},
        capture_output=True,
        text=True,
    )


def test_chains_the_jobs_own_sitecustomize_and_hides(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.chained = True")
    path = os.pathsep.join((str(INJECT / "bootstrap"), str(own)))
    code = "import os, sys; print(chained, os.environ['PYTHONPATH'], sys.path)"
    done = bootstrap(tmp_path, code, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"True {own} ") and "bootstrap" not in done.stdout


def test_a_program_without_tensorflow_is_untouched(tmp_path: Path) -> None:
    code = "import sys; print([m for m in sys.modules if 'stitch' in m])"
    done = bootstrap(tmp_path, code, PYTHONPATH=str(INJECT / "bootstrap"))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"STITCH_MODE": "fast"},
        {"STITCH_WAIT": "soon"},
        {"STITCH_WAIT": "-1"},
        {"STITCH_WAIT": "nan"},
        {"STITCH_PUBLIC_KEY": "abc"},
        {"STITCH_SESSION": "../up"},
        {"STITCH_CONTROL": "2"},
        {"STITCH_GUARD": "0.4"},
        {"STITCH_GUARD": "1.3"},
    ],
    ids=str,
)
def test_bad_settings_are_named(bad: dict[str, str]) -> None:
    with pytest.raises(reasons.Refused, match=next(iter(bad))):
        settings.read(bad)


def test_settings() -> None:
    read = settings.read({"STITCH_PUBLIC_KEY": "ab" * 32 + "," + "cd" * 32, "STITCH_WAIT": "2.5"})
    assert read.public_keys == (b"\xab" * 32, b"\xcd" * 32)
    assert (read.wait, read.mode, read.control, read.guard) == (2.5, "optimize", 0.01, 1.02)


def test_targets() -> None:
    flags = frozenset().union(*(needed for _, needed in target.LEVELS))
    assert target.detect(flags) == "cpu-x86-64-v4"
    assert target.detect(flags - {"avx512f"}) == "cpu-x86-64-v3"
    assert target.detect(flags - {"avx2"}) == "cpu-x86-64-v2"  # a level needs those below it
    assert target.detect(frozenset()) == ""
    assert target.runs_on("cpu-x86-64-v3", "cpu-x86-64-v4")
    assert not target.runs_on("cpu-x86-64-v4", "cpu-x86-64-v3")
    assert not target.runs_on("sm_90", "cpu-x86-64-v4") and not target.runs_on("", "")


def begun_by_another(store: str, digest: str) -> None:
    """By a process that then dies."""
    code = "import sys; from stitchcore.inject import crash_breaker as guard; "
    code += "guard.swap_begin(*sys.argv[1:])"
    run = [sys.executable, "-c", code, store, digest, "key", "s"]
    subprocess.run(run, check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_process_of_the_same_number_is_another_one(tmp_path: Path) -> None:
    """In a pod each is number 1: the container that crashed, and the one that came after it."""
    store = str(tmp_path)
    begun_by_another(store, "d")
    path = tmp_path / "breaker" / "d.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "process": os.getpid()}))
    assert guard.why_not(store, "d", "key") == "the process died in its first steps"


def test_who_has_loaded_in_time_did_not_die(tmp_path: Path) -> None:
    """Another thread or process asks at the very moment at which the record goes."""
    store, end = str(tmp_path), threading.Event()

    def load() -> None:
        while not end.is_set():
            with guard.loading(store, "d", "key", "session"):
                pass

    thread = threading.Thread(target=load)
    thread.start()
    try:
        found = {guard.why_not(store, "d", "key") for _ in range(20_000)}
    finally:
        end.set()
        thread.join()
    assert found == {None}


def test_breaker(tmp_path: Path) -> None:
    store = str(tmp_path)
    assert guard.why_not(store, "d", "key") is None
    guard.swap_begin(store, "d", "key", "s")
    assert guard.why_not(store, "d", "key") is None  # still alive
    path = tmp_path / "breaker" / "d.json"
    begun_by_another(store, "d")
    assert guard.why_not(store, "d", "key")
    assert guard.why_not(store, "d", "another key") is None
    guard.job_ended(store, "s", -11)
    assert guard.why_not(store, "d", "key")  # a segmentation fault stays
    guard.job_ended(store, "other", 1)
    assert guard.why_not(store, "d", "key")
    guard.job_ended(store, "s", -9)
    assert guard.why_not(store, "d", "key") is None  # killed: not the kernel's fault
    path.write_text("{")
    assert guard.why_not(store, "d", "key")
    guard.swap_ok(store, "d")
    assert guard.why_not(store, "d", "key") is None


def test_a_failure_on_record_outlives_the_job(tmp_path: Path) -> None:
    """Exit code 1 is what a job with a mistake of its own ends with: it must not clear this."""
    store = str(tmp_path)
    guard.record_failure(store, "d", "key", "s", "kernel says no")
    guard.swap_ok(store, "d")
    guard.job_ended(store, "s", 1)
    assert guard.why_not(store, "d", "key") == "kernel says no"  # this process is alive
    assert guard.why_not(store, "d", "another key") is None
    guard.swap_begin(store, "d", "another key", "s")  # a new artifact opens its own account
    assert guard.why_not(store, "d", "key") is None


def test_a_failure_that_is_put_on_record_while_the_account_is_closed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the job's end its watcher may close what its main thread has just found to fail."""
    store, read = str(tmp_path), records.read

    def meanwhile(path: str) -> dict[str, object]:
        found = read(path)
        guard.record_failure(store, "d", "k", "s", "kernel gave 7")
        return found

    guard.swap_begin(store, "d", "k", "s")
    monkeypatch.setattr(records, "read", meanwhile)
    guard.swap_ok(store, "d")
    monkeypatch.undo()
    guard.swap_ok(store, "d")
    assert guard.why_not(store, "d", "k") == "kernel gave 7"


def test_order_interval_is_exact() -> None:
    assert timer.order_interval([1.0] * 5)[1] == float("inf")
    assert timer.order_interval([3, 1, 2, 6, 5, 4]) == (1, 6)  # 1 - 2 / 64 = 96.9 %
    assert timer.order_interval(list(range(1, 21))) == (6, 15)  # table of the sign test, n = 20


@pytest.mark.parametrize("count", [6, 60, 333, 4096])
def test_order_interval_is_the_binomial_distributions(count: int) -> None:
    from scipy.stats import binom  # takes two seconds

    rank = int(binom.ppf(0.025, count, 0.5))
    assert timer.order_interval(list(range(1, count + 1))) == (rank, count + 1 - rank)


@given(st.integers(0, 2**32), st.integers(6, 40))
def test_order_interval_holds_the_median_of_its_sample(seed: int, count: int) -> None:
    values = [random.Random(seed + i).random() for i in range(count)]
    low, high = timer.order_interval(values)
    assert low <= statistics.median(values) <= high


def steps(ratio: float, pairs: int, noise: float = 0.01) -> list[Interval]:
    shuffle = random.Random(1)
    made = []
    for block in range(2 * pairs + 2):
        arm = block % 2
        for position in range(3):
            beside = position != 1  # a switch: it may be of the other arm, or cost something
            base = 1e6 * (5 if beside else ratio if arm else 1.0)
            made.append(Interval(int(base * shuffle.gauss(1, noise)), arm, position, block))
    return made


@pytest.mark.parametrize(
    ("ratio", "pairs", "expected"),
    [
        (0.8, 12, True),
        (0.8, 3, None),
        (1.1, 12, False),
        (3.0, 4, False),
        (3.0, 3, None),
        (1.01, 12, None),
        (1.01, 70, True),
        (1.06, 7, False),
    ],
)
def test_verdict(ratio: float, pairs: int, expected: bool | None) -> None:
    found = timer.compare(steps(ratio, pairs))
    assert found is not None and found.ratio == pytest.approx(ratio, rel=0.03)
    assert timer.verdict(found) is expected


def test_seconds_and_ratio_are_one_figure() -> None:
    """Where a machine becomes slower in the midst of a pair, medians of each kind of block would
    tell of another speed-up than the pairs."""
    made = [(0, 10), (1, 8), (0, 10), (1, 8), (0, 10), (1, 16), (0, 20), (1, 16), (0, 20), (1, 16)]
    found = timer.compare(
        [Interval(time, arm, n, block) for block, (arm, time) in enumerate(made) for n in range(3)],
        skip=0,
    )
    assert found is not None and (found.ratio, found.original) == (0.8, 10)
    assert found.stitched / found.original == pytest.approx(found.ratio)


@pytest.mark.parametrize(
    ("ratio", "guard", "expected"),
    [(0.97, 0.9, False), (0.8, 0.9, True), (0.97, 1.02, True), (1.06, 1.15, None)],
)
def test_a_policy_may_ask_for_more_or_less(
    ratio: float, guard: float, expected: bool | None
) -> None:
    assert timer.verdict(timer.compare(steps(ratio, 40)), guard) is expected


def test_a_job_of_fifty_steps_gets_its_verdict() -> None:
    """Blocks as the hook schedules them, the stitched arm first; the docstring names 46 calls."""
    lengths = {1: program.FIRST_BLOCK, 0: program.ORIGINAL_BLOCK}
    made: list[Interval] = []
    block, position = 0, 0
    while len(made) < 50:
        arm = 1 - block % 2
        made.append(Interval(1_000_000 if arm else 1_300_000, arm, position, block))
        position += 1
        if position == lengths[arm]:
            block, position = block + 1, 0
        done = [one for one in made if one.block != made[-1].block]
        if timer.verdict(timer.compare(done)) is not None:
            break
    assert len(made) == 46 and timer.verdict(timer.compare(done)) is True


def test_too_few_pairs_have_no_interval() -> None:
    found = timer.compare(steps(0.8, 3))
    assert step_monitor.comparison_fields(found)["interval"] is None
    assert step_monitor.comparison_fields(timer.compare(steps(0.8, 12)))["interval"] is not None


def test_no_verdict_without_pairs() -> None:
    assert timer.compare([]) is None and timer.verdict(None) is None
    assert timer.compare([Interval(1, 0, i, 0) for i in range(9)]) is None


def test_submit_publishes_once(tmp_path: Path) -> None:
    store = str(tmp_path)
    client.submit(store, "d" * 64, b"graph", {"tf": "2.21.0"})
    client.submit(store, "d" * 64, b"other", {})
    assert (tmp_path / "requests" / ("d" * 64) / "graph.pb").read_bytes() == b"graph"
    assert sorted(os.listdir(tmp_path / "requests")) == ["d" * 64]
    (tmp_path / "answers").mkdir()
    assert client.answer(store, "d" * 64) is None
    (tmp_path / "answers" / f"{'d' * 64}.json").write_text("[1")
    with pytest.raises(reasons.Refused) as caught:
        client.answer(store, "d" * 64)
    assert caught.value.reason == reasons.STORE_UNREADABLE


def test_a_fresh_start_forgets_what_is_past(tmp_path: Path) -> None:
    store = str(tmp_path)
    guard.forget_failures(store)  # without a folder too
    guard.record_failure(store, "failed", "key", "s", "kernel says no")
    guard.swap_begin(store, "running", "key", "s")
    begun_by_another(store, "crashed")
    (tmp_path / "breaker" / "damaged.json").write_text("{")
    guard.forget_failures(store)
    assert [path.name for path in (tmp_path / "breaker").glob("*.json")] == ["running.json"]
    assert guard.why_not(store, "running", "key") is None


def test_a_version_without_a_shim_is_refused(tmp_path: Path) -> None:
    """By name, with the mend, and before anything of TensorFlow is touched."""
    (tmp_path / plugin.PLUGIN).write_bytes(b"never loaded")
    for version, mend in (((2, 18), "build --version 2.18"), ((2, 22), "2.15 to 2.21"),
                          ((2, 14), "2.15 to 2.21")):  # fmt: skip
        with pytest.raises(reasons.Refused) as caught:
            plugin.load(str(tmp_path), version)
        assert caught.value.reason == reasons.UNSUPPORTED_VERSION
        assert mend in caught.value.detail


def unproved(**extra: object) -> Artifact:
    return Artifact({"key": "c" * 64, "target": "sm_90", "measured": False, **extra}, ())


def test_what_nobody_proved_is_taken_only_where_it_is_allowed_and_judged() -> None:
    """An artifact that a worker without the GPU has made."""
    plain = settings.read({"STITCH_STORE": "/nowhere"})
    allowed = settings.read({"STITCH_STORE": "/nowhere", "STITCH_ALLOW_UNMEASURED": "1"})
    blind = settings.read(
        {"STITCH_STORE": "/nowhere", "STITCH_ALLOW_UNMEASURED": "1", "STITCH_CONTROL": "0"}
    )
    step, fixed = Program("d", "sm_90"), Program("d", "sm_90", reasons.KERNEL_RANDOM_STATE)
    for artifact in (unproved(measured=True), Artifact({"key": "c" * 64}, ())):
        admit(artifact, step, plain)
    admit(unproved(), step, allowed)
    step.artifact, fixed.artifact = unproved(), unproved(measured=True)
    assert step.unproved and not fixed.unproved
    for found, config, said in (
        (step, plain, "STITCH_ALLOW_UNMEASURED=1 to try it"),
        (step, blind, "STITCH_CONTROL=0"),
        (fixed, allowed, "both ways in turn"),
    ):
        with pytest.raises(reasons.Refused, match=said) as refused:
            admit(unproved(), found, config)
        assert refused.value.reason == reasons.UNMEASURED
        assert "neither proved nor timed on sm_90" in refused.value.detail


def test_regions_that_were_wrong_are_left_out_at_the_next_start(tmp_path: Path) -> None:
    store = str(tmp_path)
    assert guard.left_out(store, "d", "k") == {}
    guard.record_wrong(store, "d", "k", "s", {"r1": "2 instead of 1"})
    guard.record_wrong(store, "d", "k", "s", {"r2": "3 instead of 1"})
    guard.swap_begin(store, "d", "k", "s")
    guard.swap_ok(store, "d")
    guard.job_ended(store, "s", 0)
    assert guard.left_out(store, "d", "k") == {"r1": "2 instead of 1", "r2": "3 instead of 1"}
    assert guard.left_out(store, "d", "other") == {}  # another artifact is tried whole
    assert guard.why_not(store, "d", "k") is None  # and this one is no crash
    guard.forget_failures(store)
    assert guard.left_out(store, "d", "k") == {}


def test_a_patch_without_what_was_wrong() -> None:
    document = {"regions": [{"name": "a"}, {"name": "b"}], "more": 1}
    wrong, unfit = reasons.WRONG_RESULT, reasons.GUARD_FAILED
    assert program._without(document, {}) is document
    assert program._without(document, {"a": wrong}) == {"regions": [{"name": "b"}], "more": 1}
    with pytest.raises(reasons.Refused) as refused:
        program._without(document, {"a": unfit, "b": wrong})
    assert refused.value.reason == unfit


@pytest.mark.parametrize("first", [program.ORIGINAL, program.STITCHED])
def test_a_step_is_built_anew_when_it_is_the_originals_turn(first: int) -> None:
    arm, begun = [program.STITCHED], [3, 5]
    one = program.Instance(Program("d"), 0, first, arm, begun, True)
    stitched, original = int(first != program.STITCHED), int(first != program.ORIGINAL)
    assert one.mark() == stitched and one.has_begun()
    one.renew = True
    assert one.mark() == stitched  # amid a stitched block
    arm[0] = program.ORIGINAL
    assert one.mark() == original and not one.has_begun()
    arm[0] = program.STITCHED
    assert one.mark() == 2 and one.arm_of(2) == program.STITCHED
    one.keep_original()  # should it not be taken: the ordinary one is still what it was
    assert one.first_arm == first
    begun[program.STITCHED] += 1
    assert one.has_begun()
    one.renew, one.can_alternate = True, False
    assert one.mark() == 3  # which never runs its original


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, ""),
        ({"RANK": "3"}, "3"),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "9"}, "0"),
        ({"RANK": "a secret"}, ""),
        ({"TF_CONFIG": '{"task": {"type": "worker", "index": 1}}', "RANK": "7"}, "worker 1"),
        ({"TF_CONFIG": '{"task": []}', "RANK": "7"}, "7"),
        ({"TF_CONFIG": "no JSON"}, ""),
    ],
)
def test_the_rank_that_whatever_started_a_process_gave_it(
    environment: dict[str, str], rank: str
) -> None:
    assert settings.read({"STITCH_STORE": "/nowhere", **environment}).rank == rank
