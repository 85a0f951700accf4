"""`stitch run -- python train.py`: the user's command, with what wins stitched into it.

The job starts at once and unchanged; a worker in a child process optimizes its step meanwhile, and
the job swaps the result in. Whatever goes wrong here, the job runs, and its exit code is ours.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.status import Status

from stitchcore import options as settings
from stitchcore.artifact import sign
from stitchcore.artifact.keys import code_version
from stitchcore.artifact.store import Store, open_store
from stitchcore.cli import common, run_job, run_summary
from stitchcore.cli.optimize_child import POLL_SECONDS, Failure, Worker, worker_python
from stitchcore.errors import Reason, Refused
from stitchcore.inject import client, crash_breaker, verdicts
from stitchcore.options import Options

RETRIED = frozenset(
    reason.value
    for reason in (
        Reason.WORKER_FAILED,
        Reason.DEADLINE,
        Reason.NO_COMPILER,
        Reason.NO_TENSORFLOW,
        Reason.UNSUPPORTED_VERSION,
        Reason.STORE_UNREADABLE,
    )
)
"""Refusals that a new run tries again: they tell of the machine, not of the graph."""


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--wait/--no-wait", default=False, help="Hold the first step until the artifact.")
@click.option("--finish", is_flag=True, help="Compile on when the job has ended, for its next run.")
@click.option("--store", type=click.Path(path_type=Path), default=None, help="Default: user cache.")
@click.option("--fresh", is_flag=True, help="Optimize again what is already in the store.")
@common.without_option
@common.library_option
@click.option("--json", "as_json", is_flag=True, help="Summary as JSON: the last line of stdout.")
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    wait: bool,
    finish: bool,
    store: Path | None,
    fresh: bool,
    without: str | None,
    library: Path | None,
    as_json: bool,
    command_line: tuple[str, ...],
) -> None:
    """Run COMMAND_LINE (python train.py ...) and stitch its training step."""
    output = common.Output(as_json)
    options = settings.of_this_process()
    if store is not None:
        options = replace(options, store=store.absolute())
    options = common.with_library(common.left_out(options, without, output), library)
    if options.restart is not None and not options.restart.is_file():
        raise click.UsageError(f"STITCH_RESTART={options.restart}: no such file")
    session = run_job.session_name(os.getpid(), time.time())
    env, ready = _prepare(options, session, wait, fresh)
    try:
        process = run_job.start(command_line, env)
    except OSError as error:
        with contextlib.suppress(OSError):  # nothing was run
            (options.store / "sessions" / session).rmdir()
        why, mend = error.strerror or str(error), "check the command after --"
        if command_line[0].endswith(".py"):
            mend = f"name a Python: stitch run -- {shlex.join(['python', *command_line])}"
        common.fail(output, command_line[0], why, mend, code=127)
    with _signals_to(process.pid):
        if not ready:
            raise SystemExit(run_job.shell_code(process.wait()))
        run = Run(options, session, command_line, wait, finish)
        run.follow(process)
    code = run_job.shell_code(process.returncode)
    run.ended(code)
    crash_breaker.job_ended(str(options.store), session, code)
    result = run_summary.of(run.record, options.store)
    result = replace(result, ready=run.ready_for_next, session=session)
    result = run_summary.with_pages(result, options.store, command_line, run.record.tf)
    if as_json:
        output.document(run_summary.document(result))
    else:
        run_summary.show(result, common.console(stderr=True))
    raise SystemExit(code)


def _prepare(
    options: Options, session: str, wait: bool, fresh: bool
) -> tuple[dict[str, str], bool]:
    """The job's environment, and whether stitching can be tried; the job runs either way."""
    plain = dict(os.environ)
    try:
        options.store.mkdir(parents=True, exist_ok=True)
        (options.store / "sessions" / session).mkdir(parents=True)
        key = sign.public_hex(sign.load_or_create_key(options.key))
        again = fresh or options.dump is not None or options.restart is not None
        _forget(open_store(str(options.store)), options.signature, again)
        if fresh:
            crash_breaker.forget_failures(str(options.store))
            verdicts.forget_all(str(options.store))
    except (OSError, ValueError, Refused) as error:
        mend = "the job runs unchanged; `stitch doctor` says what to mend"
        click.echo(f"[stitch] store_unreadable: {error}; {mend}", err=True)
        return plain, False
    seconds = options.wait if wait else 0.0
    return run_job.environment(plain, options.store, session, key, seconds), True


def _forget(store: Store, signature: str, everything: bool) -> None:
    """Drop answers that a new run should ask for again: unfinished ones, those of other code than
    this (a mended compiler never answers with an old artifact) or under other settings than these
    (`Options.signature`), and what was built from an edited stage, which is of the run that asked
    for it."""
    for name in store.list("answers"):
        try:
            answer = json.loads(store.read("answers", name))
        except ValueError:
            answer = {}
        unfinished = answer.get("status") != "ready" and answer.get("reason", "") in RETRIED
        passing = answer.get("status") == "pending" or answer.get("edited", False)
        foreign = answer.get("code") != code_version()
        foreign = foreign or answer.get("settings", signature) != signature
        if everything or unfinished or passing or foreign:
            store.filesystem.rm_file(store.path("answers", name))


@contextlib.contextmanager
def _signals_to(process: int) -> Iterator[None]:
    """Ctrl-C reaches the job by its process group; a SIGTERM is passed on. We stay to report."""

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
        signal.SIGHUP: signal.signal(signal.SIGHUP, forward),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _Requests:
    """Digests to optimize, in order of arrival."""

    waiting: list[str]
    taken: set[str]

    def add(self, digest: str) -> None:
        if digest not in self.taken:
            self.taken.add(digest)
            self.waiting.append(digest)


LOOK_SECONDS = (1.0, 10.0)
"""Between looks at the job's processes, while it shows no step: the first time, and in the end."""

SPARE_SECONDS = 60.0
"""A worker that nobody has asked for so long is ended: it holds memory."""


class Run:
    """One run: follows the job's events and serves its requests, one worker at a time. A spare one
    waits from when the job has imported TensorFlow until there is a request or none is needed."""

    def __init__(
        self,
        options: Options,
        session: str,
        command_line: Sequence[str],
        wait: bool,
        finish: bool = False,
    ) -> None:
        self.record = run_job.Record()
        self.ready_for_next = 0
        self._options, self._wait, self._finish_late = options, wait, finish
        self._command_line = command_line
        self._folder = options.store / "sessions" / session
        self._events = run_job.EventFile(self._folder / "events.jsonl")
        self._told = client.Events(str(options.store), session, lambda kind, fields: None)
        self._store = open_store(str(options.store))
        self._requests = _Requests([], set())
        self._worker: Worker | None = None
        self._spare: Worker | None = None
        self._spare_until = 0.0
        self._workers = 0
        self._status: Status | None = None
        self._children: set[int] = set()  # of which has been told that they are left alone
        self._next_look, self._look_seconds = time.monotonic(), LOOK_SECONDS[0]

    def follow(self, process: Any) -> None:
        """Serve until the job has ended; then, where that was asked for, until nothing is left."""
        try:
            while process.poll() is None:
                self._step(job_runs=True)
                self._look_below(process.pid)
                time.sleep(POLL_SECONDS / 4)
            self._take_events()
            self._poll(job_runs=False)
            while self._finish_late and self._step(job_runs=False):
                time.sleep(POLL_SECONDS)
        except Exception as error:  # whatever it is, the job must not be left waiting for us
            self._give_up(error)
            process.wait()
        finally:
            self._quiet()
            for worker in filter(None, (self._worker, self._spare)):
                worker.stop()

    def ended(self, code: int) -> None:
        """Keep the command's exit code; in the session too, for `stitch explain`."""
        self.record.exit_code = code
        self._told.write("exited", digest="", code=code)

    def _give_up(self, error: Exception) -> None:
        """Say so in one line, and tell a job that waits for an answer that none will come."""
        detail = f"{type(error).__name__}: {error}"
        said = str(error) if isinstance(error, Refused) else f"worker_failed: {detail}"
        click.echo(f"[stitch] {said}; the job runs unchanged", err=True)
        waiting = set(self._requests.waiting)
        if self._worker is not None:
            waiting.add(self._worker.digest)
        for digest in waiting:
            self._refuse(digest, Failure(Reason.WORKER_FAILED, detail))

    def _step(self, job_runs: bool) -> bool:
        """One round; False when there is nothing to wait for."""
        for event in self._take_events():
            if event["type"] == "started" and not self._workers:
                self._prepare(str(event["tf"]))
            elif event["type"] == "ready" and not self._requests.taken:
                self._spare_until = 0.0  # the store had the answer
        if self._worker is None and self._requests.waiting:
            self._begin(self._requests.waiting[0])
            del self._requests.waiting[0]
        elif self._spare is not None and time.monotonic() > self._spare_until:
            self._spare.stop()
            self._spare = None
        return self._poll(job_runs)

    def _look_below(self, job: int) -> None:
        """Until a step has been seen: tells, as the job's own events do, of processes that have
        TensorFlow and will tell of nothing."""
        if self.record.graphs or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._look_seconds
        self._look_seconds = min(2 * self._look_seconds, LOOK_SECONDS[1])
        with contextlib.suppress(OSError):  # /proc may be closed to us
            for number, command in run_job.unfollowed(job).items():
                if number not in self._children:
                    self._children.add(number)
                    told = {"reason": Reason.CHILD_PROCESS.value, "detail": f"{number}: {command}"}
                    self._told.write("refused", digest="", process=number, **told)

    def _take_events(self) -> list[run_job.Event]:
        """What the job has told since the last call; its requests wait from then on."""
        events = self._events.read()
        for event in events:
            self.record.add(event)
            if event["type"] == "submitted":
                self._requests.add(str(event["digest"]))
        return events

    def _poll(self, job_runs: bool) -> bool:
        """Whether a worker was at work; takes its answer when it has ended."""
        if self._worker is None:
            return False
        self._show(self._worker.digest, job_runs)
        ended = self._worker.poll()
        if ended is not None:
            self._finish(self._worker, ended, job_runs)
        return True

    def _prepare(self, tf: str) -> None:
        """A worker for the first request of a job of TensorFlow `tf`, if there can be one. It sees
        no GPU: a request for one gets another."""
        python = worker_python(self._command_line, tf, own_tensorflow())
        if python is not None:
            self._spare = self._started(python)
            self._spare_until = time.monotonic() + SPARE_SECONDS

    def _started(self, python: str, target: str = "") -> Worker:
        log = self._folder / f"worker-{self._workers}.log"
        self._workers += 1
        return Worker(target, self._options, log, polite=not self._wait, python=python)

    def _begin(self, digest: str) -> None:
        meta = json.loads(self._store.read("requests", digest, "meta.json"))
        target = str(meta["target"])
        worker, self._spare = self._spare, None
        if worker is not None and worker.gpus != target.startswith("sm_"):
            worker.stop()
            worker = None
        if worker is None:
            python = worker_python(self._command_line, str(meta["tf"]), own_tensorflow())
            if python is None:
                self._refuse(digest, no_worker(str(meta["tf"]), own_tensorflow()))
                return
            worker = self._started(python, target)
        worker.ask(digest)
        self._worker = worker

    def _finish(self, worker: Worker, ended: Failure | bool, job_runs: bool) -> None:
        digest, self._worker = worker.digest, None
        self._quiet()
        graphs = self.record.of(digest)
        graph = graphs[0]  # where several processes have it, the first is charged with it
        graph.compile_seconds, graph.processor_seconds = worker.seconds, worker.processor_seconds
        graph.waited = self._wait
        answer = self._store.read_answer(digest) or {}
        if isinstance(ended, Failure):
            self._refuse(digest, ended)
        elif answer.get("status") not in ("ready", "refused"):
            self._refuse(digest, Failure(Reason.WORKER_FAILED, "the worker gave no answer"))
        elif answer["status"] == "ready":
            for known in graphs:
                known.key = str(answer["key"])
            late = self.record.ended or not job_runs
            self.ready_for_next += late and graph.status in ("submitted", "ready")

    def _refuse(self, digest: str, failure: Failure) -> None:
        """Where an answer cannot be written (the disk is full) the request is taken back, which
        needs no room and tells a job that waits as much; where nothing can, its deadline holds."""
        answer = {"status": "refused", "reason": failure.reason.value, "detail": failure.detail}
        try:
            self._store.answer(digest, answer)
        except Refused:
            with contextlib.suppress(Refused):
                self._store.delete("requests", digest)
        for graph in self.record.of(digest):
            graph.status, graph.reason, graph.detail = "left", failure.reason.value, failure.detail

    def _show(self, digest: str, job_runs: bool) -> None:
        """A live line while nothing else writes to the terminal: the job waits, or has ended."""
        if not sys.stderr.isatty() or (job_runs and not self._wait):
            return
        answer = self._store.read_answer(digest) or {}
        stage = str(answer.get("stage", "starting"))
        if answer.get("total"):
            stage += f" {answer.get('done', 0)}/{answer['total']}"
        line = f"stitch: optimizing the step ({stage})"
        if self._status is None:
            self._status = common.console(stderr=True).status(line)
            self._status.start()
        self._status.update(line)

    def _quiet(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def own_tensorflow() -> str:
    """Version of this Python's TensorFlow, "" without one; nothing is imported."""
    for name in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def no_worker(job_tf: str, own_tf: str) -> Failure:
    """Why no Python here can work for a job of TensorFlow `job_tf`; `own_tf` is "" for none."""
    mend = "pip install stitchcore beside the job's TensorFlow"
    if not own_tf:
        return Failure(Reason.NO_TENSORFLOW, f"this Python has no TensorFlow: {mend}")
    detail = f"the job runs TensorFlow {job_tf}, this Python has {own_tf}: {mend}"
    return Failure(Reason.UNSUPPORTED_VERSION, detail)
