"""The hook: what happens in a job from `import tensorflow` to its end.

Grappler shows each graph to `Hook.on_graph`. Training steps get a timer and are handed in; when the
artifact is there it is verified, its kernels are loaded, and the step is swapped, compared with the
original in alternating blocks, and kept or rolled back. A daemon thread (`watch`) does all of this
beside the job. Whatever goes wrong, the original graph stays and one line says why.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any, Dict, FrozenSet, Hashable, List, Optional, Set, Tuple

from . import (
    call_interception,
    caller_thread,
    client,
    collectives,
    coordination_service,
    crash_breaker,
    digest,
    gateway,
    graphs,
    plugin,
    reasons,
    rebuilds,
    redact,
    settings,
    step_monitor,
    step_recorder,
    swap_group_member,
    swap_start,
    target,
    xla,
)
from . import program as program_module
from .program import FEW_CALLS, ORIGINAL, STITCHED, Instance, Program, Submission, View

POLL_SECONDS = 0.1
SAVINGS_SECONDS = 15.0
COMMAND = 300  # characters of the process's own arguments that are told
ANEW = "TensorFlow builds its graph anew with every call"
QUIET = frozenset(
    (
        reasons.REGION_TOO_SMALL,
        reasons.FEW_CALLS,
        reasons.INITIALIZATION,
        reasons.INPUT_PIPELINE,
        reasons.UNMEASURED,
        reasons.IMPLAUSIBLE,
    )
)


class Hook:
    """One per process. Constructed by `install`."""

    def __init__(self, config: settings.Settings, native: plugin.Plugin, tf_version: str) -> None:
        self._config = config
        self._plugin = native
        self._tf = tf_version
        self._target = target.detect(target.cpu_flags())
        expected = client.Expected(
            ".".join(tf_version.split(".")[:2]), self._target, config.public_keys, native.verify
        )
        self._source = gateway.source(config, expected, self._refuse)
        self._events = client.Events(config.store, config.session, self._source.observe)
        self._programs: Dict[str, Program] = {}
        self._instances: Dict[Hashable, Instance] = {}
        self._lock = threading.Lock()
        self._caller = call_interception.Caller()
        self.unconfirmed: Set[Hashable] = set()
        self.timed: Set[Hashable] = set()
        self._recorder = step_recorder.Recorder(native)
        self.followed = self._recorder.followed
        self._said: List[str] = []
        self._noted: set[Any] = set()
        self._process = self._told = os.getpid()
        self._follower = step_monitor.StepMonitor(config, native, self._events, self._say)
        self._swapper = swap_start.Swapper(
            config, native, self._events, self._disable, self._source.begun
        )
        parts = swap_group_member.Parts(
            *(config, native, self._source, self._events, self._swapper),
            *(self._follower.rolled_back, self._refuse, coordination_service),
        )
        self._joined = swap_group_member.Joined(parts)
        self._rebuilds: Dict[Hashable, rebuilds.Rebuilds] = {}
        self._dear: Set[Hashable] = set()
        self._savings_due = time.monotonic() + SAVINGS_SECONDS
        self._wake = threading.Event()
        self._ended = self._unwatched = False

    def start(self) -> None:
        inlines = self._config.mode == "optimize"
        executor = self._plugin.caller_thread_executor() if inlines else ""
        call_interception.install_functions(self._caller, self, inlines, executor)
        call_interception.install_sessions(self._caller, self, executor)
        self._plugin.set_callback(self.on_graph)
        threading.Thread(target=self._watch, name="stitch", daemon=True).start()
        self._source.start()
        command = " ".join(map(str, getattr(sys, "argv", ())))
        told = {"command": command[:COMMAND], "rank": self._config.rank}
        self._events.write("started", tf=self._tf, **told)
        atexit.register(self._end)

    def choose(self, caller: Hashable) -> Tuple[int, Hashable]:
        """Called in the user's own calls; never raises."""
        try:
            instance = self._instances.get(caller)
            if instance is None:
                return 0, caller
            if self._config.wait > 0:
                if caller in self.timed and not instance.awaited:
                    self._await(instance)
                elif instance.on_gpu:  # it has run its original first
                    self._swapper.late(instance)
            if instance.lifted is not None:
                stitched = bool(instance.arm[0] == STITCHED)
                if caller not in self.timed:
                    self._plugin.pass_step(instance.step, int(stitched))
                return stitched, instance.lifted if stitched else caller
            if instance.member is not None and instance.arm[0] == plugin.HELD:
                self._wake.set()
                swap_group_member.hold(instance, lambda: self._ended or self._unwatched)
            return instance.mark(), caller
        except Exception as error:
            self._failed_itself(error)
            return 0, caller

    def begin(self, caller: Hashable) -> None:
        """A call that is timed from outside begins; never raises."""
        try:
            instance = self._instances[caller]
            if instance.on_gpu:
                self._plugin.begin_call(instance.step)
        except Exception as error:
            self._failed_itself(error)

    def took(self, caller: Hashable, mark: int, lifted: bool, nanoseconds: int) -> None:
        """A call that is timed from outside has ended; never raises."""
        try:
            instance = self._instances[caller]
            arm = STITCHED if lifted else instance.arm_of(mark)
            self._plugin.record_call(instance.step, arm, nanoseconds, instance.on_gpu)
        except Exception as error:
            self._failed_itself(error)

    def begin_followed(self, caller: Hashable, mark: int, lifted: bool) -> None:
        """A call of which it may be recorded where its time goes begins; never raises."""
        try:
            instance = self._instances[caller]
            arm = STITCHED if lifted else instance.arm_of(mark)
            self._recorder.begin(caller, instance, arm)
        except Exception as error:
            self._failed_itself(error)

    def end_followed(self, caller: Hashable, mark: int, lifted: bool, nanoseconds: int) -> None:
        """Such a call has ended; never raises."""
        try:
            arm = STITCHED if lifted else self._instances[caller].arm_of(mark)
            self._recorder.end(caller, arm, nanoseconds)
        except Exception as error:
            self._failed_itself(error)

    def _say(self, reason: str, detail: str = "") -> None:
        """The one line a job may see; only the first is printed, events hold the rest."""
        if not self._said:
            text = f"[stitch] {reason}" + (f": {detail}" if detail else "")
            programs = self._programs.values()
            stitched = any(known.swapped and known.reason is None for known in programs)
            sys.stderr.write(text + ("\n" if stitched else "; the job runs its own step\n"))
        self._said.append(reason)

    def _refuse(self, about: str, reason: str, detail: str = "", loud: bool = False) -> None:
        with self._lock:
            new = (about, reason) not in self._noted
            self._noted.add((about, reason))
        if new:
            self._events.write("refused", digest=about, reason=reason, detail=detail)
            if loud or reason not in QUIET:
                self._say(reason, detail)

    def _failed_itself(self, error: Exception) -> None:
        """Tells of an error of our own, if that can be; never raises."""
        try:
            why = reasons.of(error)
            self._refuse("", why.reason, why.detail)
        except Exception:
            self._unwatched = True  # nobody is there to say so

    # Graphs

    def on_graph(self, data: bytes, item: int) -> Optional[bytes]:
        """Called by Grappler in any thread; never raises."""
        self._caller.graphs += 1
        if os.getpid() != self._process:
            self._tell_of_fork(data)
            return None
        if self._ended or self._unwatched:
            return None
        begin, again, self._caller.shown = time.monotonic(), self._again(len(data)), None
        if again in self._dear:
            return None
        try:
            return self._answer(data, item)
        except Exception as error:
            self._failed_itself(error)
            self._shown_in_vain(error)
        finally:
            if again is not None:
                self._looked(again, begin, time.monotonic())
        return None

    def _tell_of_fork(self, data: bytes) -> None:
        """Once, that a step is called in a process that this one has forked: it has no watcher, and
        is left alone. Only to a file: what tells a gateway holds locks of a thread that is not
        here. Never raises."""
        if self._told == os.getpid() or self._config.gateway is not None:
            return
        try:
            from tensorflow.core.framework import graph_pb2

            if graphs.why_left(graph_pb2.GraphDef.FromString(data)) is None:
                self._told = os.getpid()
                detail = f"process {self._told}, which process {self._process} has forked"
                told = {"reason": reasons.CHILD_PROCESS, "detail": detail}
                self._events.write("refused", digest="", **told)
        except Exception:
            self._told = os.getpid()  # nobody is here to hear of it

    def _again(self, size: int) -> Optional[Hashable]:
        """By what a graph is known that may have been shown before: the caller that has had its
        first calls, or, where none of Python's is under way, its size in bytes (its name is another
        each time). None for those first calls; never raises."""
        try:
            caller = self._caller.now
            if caller is None:
                return size
            instance = self._instances.get(caller.key)
            if instance is None:
                return None
            calls = sum(self._plugin.calls(instance.step, arm) for arm in (ORIGINAL, STITCHED))
            return caller.key if calls > rebuilds.OFTEN else None
        except Exception as error:
            self._failed_itself(error)
            return None

    def _looked(self, again: Hashable, begin: float, end: float) -> None:
        """Where looking at a graph each time has cost more than it may, it stays as it was; never
        raises."""
        try:
            seen = self._rebuilds.setdefault(again, rebuilds.Rebuilds())
            instance, shown = self._instances.get(again), self._caller.shown
            own = instance.program if instance is not None else None
            for program in filter(None, (shown, own)):
                seen.programs[program.digest] = program
            if not seen.took(begin, end):
                return
            self._dear.add(again)
            if not seen.programs:
                self._refuse("", reasons.UNMEASURED, ANEW)
            for program in seen.programs.values():
                if program is not own and any(
                    one.runs(program) for one in list(self._instances.values())
                ):  # what Python calls keeps the graph that it was given
                    detail = f"{ANEW} of another graph: it runs as it was there"
                    self._refuse(program.digest, reasons.UNMEASURED, detail)
                else:
                    self._disable(program, reasons.UNMEASURED, ANEW)
        except Exception as error:
            self._failed_itself(error)

    def _shown_in_vain(self, error: Exception) -> None:
        """The graph of a step stays as it is for an error of our own: no step is stitched then."""
        try:
            caller = self._caller.now
            instance = self._instances.get(caller.key) if caller is not None else None
            if instance is not None and not instance.has_begun():
                instance.keep_original()
                why = reasons.of(error)
                self._disable(instance.program, why.reason, why.detail)
        except Exception as own:
            self._failed_itself(own)

    def _answer(self, data: bytes, item: int) -> Optional[bytes]:
        from tensorflow.core.framework import graph_pb2

        graph = graph_pb2.GraphDef.FromString(data)
        if any(node.op in graphs.OURS for node in graph.node):
            return None
        reason, detail = graphs.why_left(graph), ""
        caller = self._caller.now
        if reason is None and not self._is_step(graph):
            reason = reasons.INPUT_PIPELINE
        if reason is None:
            in_function = caller is not None and isinstance(caller.key, bytes)
            reason, detail = self._joined.why_left(graph, in_function) or (None, "")
        if reason is not None:
            self._refuse("", reason, detail)
            if self._caller.probing is not None:
                self._caller.probing.reason = reason
            return None
        graph_target = target.of_graph({node.device for node in graph.node}, self._target)
        preserve = frozenset(self._plugin.preserved(item))
        fed = graphs.fed_between(graph, preserve.difference(self._plugin.fetched(item)))
        if fed is not None:  # TensorFlow puts what is fed in its place after us
            self._refuse("", reasons.FED_TENSOR, f"{fed} is computed, and fed")
            return None
        records = self._plugin.shapes(item, [node.name for node in graph.node])
        annotated, types = graphs.annotate(graph, records)
        handed = redact.structure(annotated)
        numbering = digest.number(handed, preserve)
        program = self._program(
            Program(numbering.digest, graph_target), numbering, graph, handed, preserve
        )
        self._caller.shown = program
        view = View(graph, numbering, preserve, types)
        if self._caller.probing is not None:
            self._caller.probing.parts.append(program)
            return None
        if caller is None:
            if program.ready and (self._config.measured or program.unproved):
                self._refuse(program.digest, reasons.UNMEASURED, "called from another graph")
                return None
            fits = program.ready and self._swapper.fits(program)
            stitched = fits and self._swapper.open(program)
            return self._built(self._stitched(view, program)) if stitched else None
        instance = self._instance(caller.key, program)
        self._joined.enlist(instance, view)
        arm = instance.arm_of(caller.mark)
        built = self._arm_graph(view, instance, program, arm)
        if instance.arm_of(caller.mark) == STITCHED:
            instance.handed = True
            self.unconfirmed.add(caller.key)
        return built

    def _is_step(self, graph: Any) -> bool:
        """Whether a graph that updates no more than counts is a step of its own: the one that was
        called. Functions of input pipelines, and those that a step calls, are none."""
        caller = self._caller.now
        if self._caller.probing is not None or not graphs.called_for_results(graph):
            return True
        return caller is not None and graphs.is_whole_of(graph, caller.arity)

    def _stitched(self, view: View, program: Program) -> Any:
        """The patched graph. What is taken back of it is told. Raises Refused."""
        patched = program_module.stitched_graph(view, program, self._plugin)
        for region, fault in patched.taken_back.items():
            self._take_back(program, region, reasons.STRUCTURE, str(fault))
        return patched.graph

    def _take_back(self, program: Program, region: str, reason: str, detail: str) -> None:
        """Tells that a region of a program is left as it was."""
        with self._lock:
            new = (program.digest, region) not in self._noted
            self._noted.add((program.digest, region))
        if new:
            reported = {"reason": reason, "detail": f"{region}: {detail}", "region": region}
            self._events.write("refused", digest=program.digest, **reported)

    @staticmethod
    def _built(graph: Any) -> bytes:
        return bytes(graph.SerializeToString())

    def _arm_graph(
        self, view: View, instance: Instance, program: Program, arm: int
    ) -> Optional[bytes]:
        if instance.lifted is not None and not program.ready:
            self._disable(instance.program, reasons.XLA_NOT_LIFTED, "the graph was another")
            return None
        if arm == STITCHED:
            try:
                new = self._stitched(view, program)
                here = self._may_run_in_caller_thread(instance, program, new)
                if instance.lifted is not None or program.for_results:  # timed where it is called
                    gated = graphs.add_gates(new, instance.step, STITCHED, view.preserve, here)
                    return self._built(gated)
                timed = graphs.add_timer(new, instance.step, STITCHED, True, here)
                return self._built(timed)
            except Exception as error:
                instance.keep_original()
                why = reasons.of(error)
                self._disable(program, why.reason, why.detail)
        if program.for_results:
            return None
        # The timer then says that this instantiation runs the original.
        return self._built(graphs.add_timer(view.graph, instance.step, ORIGINAL))

    def _may_run_in_caller_thread(
        self, instance: Instance, program: Program, stitched: Any
    ) -> bool:
        """Whether calls of a stitched graph may run in the thread that makes them; told where they
        may not. Where they do is measured (step_monitor.py)."""
        caller = self._caller.now
        if caller is None or program.artifact is None or program.on_gpu:
            return False
        alternates = instance.can_alternate and instance.member is None
        if instance.swapped_late and self._config.control <= 0:
            alternates = False
        if not caller.ours:
            why = "the job names an executor, or other processes run a part"
        elif not alternates:
            why = "they are not compared with the original's"
        else:
            why = caller_thread.why_not(stitched)
        if why:
            told = {"caller_thread": False, "detail": why}
            self._events.write("executor", digest=program.digest, **told)
            if instance.place == plugin.CALLER_THREAD and instance.compare_at is not None:
                instance.compare_at = time.monotonic()  # the earlier verdict is of calls there
            return False
        caller_thread.await_input(stitched)
        if instance.place is None:
            instance.place = plugin.IN_TURNS
            self._plugin.place(instance.step, plugin.IN_TURNS)
        elif instance.compare_at is not None:
            here = instance.place == plugin.CALLER_THREAD
            told = {"caller_thread": here, "detail": "an earlier run has found that quicker"}
            self._events.write("executor", digest=program.digest, **told)
        return True

    def _program(
        self,
        new: Program,
        numbering: digest.Numbering,
        graph: Any,
        handed: Any,
        preserve: FrozenSet[str],
    ) -> Program:
        """The program that is known by the digest of `new`, else `new`, handed in."""
        with self._lock:
            program = self._programs.setdefault(new.digest, new)
        if program is not new:
            return program
        caller = self._caller.now
        in_function = caller is None or type(caller.key) is bytes
        program.kind, program.for_results = graphs.kind_of(graph), graphs.called_for_results(graph)
        program.refused_late = graphs.late_refusal(graph, in_function)
        program.joined = collectives.meet_others(graph)
        place = self._config.group if program.joined else None
        cores = len(os.sched_getaffinity(0)) / (place.beside if place is not None else 1)
        program.devices = graphs.devices(graph, cores, place.task if place is not None else "")
        program.gpus = target.cuda_numbers({node.device for node in graph.node})
        seen = {"nodes": len(graph.node), "step": program.kind}
        self._events.write("seen", digest=program.digest, **seen)
        calls = graphs.xla_calls(graph)
        if calls:
            program.bodies = sorted({call.attr["f"].func.name for call in calls})
            program.variables = graphs.variable_shapes(graph)
            why = xla.why_left(self._tf)
            if why is not None:
                self._disable(program, reasons.MEMORY, why)
            elif caller is None or not isinstance(caller.key, bytes):
                self._disable(program, reasons.XLA_NOT_LIFTED, "not called as a function")
            return program
        if self._caller.probing is not None and graphs.has_kernel_random(graph):
            # XLA and TensorFlow draw different numbers.
            self._disable(program, reasons.KERNEL_RANDOM_STATE, "random numbers drawn under XLA")
            return program
        try:
            if program.joined and program.refused_late is not None:
                detail = "not to be swapped after the first step"
                raise reasons.Refused(program.refused_late, detail)
            if program.joined and program.for_results:
                raise reasons.Refused(reasons.COLLECTIVE, f"{program.kind} of replicas")
            if self._config.gateway is not None:  # it leaves the user's machine
                handed, preserve = redact.renamed(handed, numbering.ids, preserve)
            xla_step = self._caller.probing is not None
            program.unsubmitted = Submission(handed, preserve, xla_step)
            if not program.for_results:
                self._hand_in(program)
                self._wait(program)
        except reasons.Refused as error:
            self._disable(program, error.reason, error.detail)
        return program

    def _hand_in(self, program: Program) -> None:
        """Takes an answer that is there already, or asks for one. Raises Refused."""
        submission, program.unsubmitted = program.unsubmitted, None
        self._look(program)
        if submission is None or program.artifact is not None or program.reason is not None:
            return
        meta = program_module.request(program, self._tf, submission.preserve, submission.under_xla)
        graph = submission.graph.SerializeToString(deterministic=True)
        self._source.submit(program.digest, graph, meta)
        self._events.write("submitted", digest=program.digest)

    def _wait(self, program: Program) -> None:
        """Holds the first instantiation back until the answer is there, at most STITCH_WAIT."""
        if (
            self._config.wait <= 0
            or self._config.mode != "optimize"
            or program.artifact is not None
        ):
            return
        deadline = time.monotonic() + self._config.wait
        while time.monotonic() < deadline:
            time.sleep(0.02)
            self._look(program)
            if program.artifact is not None or program.reason is not None:
                return
        raise reasons.Refused(reasons.DEADLINE, f"no answer within {self._config.wait:g} s")

    def _await(self, instance: Instance) -> None:
        """Holds the call that makes a function worth a compilation, as a first step is held."""
        program = instance.program
        if self._calls(program) <= FEW_CALLS:
            return
        instance.awaited = True
        for part in program.parts or [program]:
            try:
                if part.unsubmitted is not None and part.reason is None:
                    self._hand_in(part)
                if part.reason is None:
                    self._wait(part)
            except reasons.Refused as error:
                self._disable(part, error.reason, error.detail)
        self._swapper.late(instance)

    def _look(self, program: Program) -> None:
        """Reads the answer; fetches, verifies and loads the artifact when it is ready."""
        answer = self._source.answer(program.digest)
        if answer is None or answer.get("status") not in ("ready", "refused"):
            return
        if answer["status"] == "refused":
            reason = str(answer.get("reason") or reasons.WORKER_FAILED)
            raise reasons.Refused(reason, str(answer.get("detail") or ""))
        key = str(answer.get("key"))
        why = crash_breaker.why_not(self._config.store, program.digest, key)
        if why is not None:
            self._events.write("crashed_before", digest=program.digest, key=key)
            raise reasons.Refused(reasons.CRASHED_BEFORE, f"artifact {key[:12]}: {why}")
        artifact = self._source.fetch(key, program.digest, program.target)
        program_module.admit(artifact, program, self._config)
        with program.lock:
            if program.artifact is None:
                program.kernels = self._load(program, artifact)
                known = crash_breaker.left_out(self._config.store, program.digest, key)
                program.left_out = dict.fromkeys(known, reasons.WRONG_RESULT)
                program.artifact = artifact
                self._swapper.look_back(program)
                self._events.write("ready", digest=program.digest, key=key)
                for region, said in known.items():
                    detail = f"on an earlier start's data {said}"
                    self._take_back(program, region, reasons.WRONG_RESULT, detail)

    def _load(self, program: Program, artifact: client.Artifact) -> FrozenSet[str]:
        """Raises Refused."""
        about = (program.digest, artifact.key)
        try:
            with crash_breaker.loading(self._config.store, *about, self._config.session):
                self._events.write("loading", digest=program.digest, key=artifact.key)
                return program_module.load_kernels(self._plugin, artifact, program.gpus)
        except OSError as error:
            detail = f"breaker: {error.strerror}"
            raise reasons.Refused(reasons.STORE_UNREADABLE, detail) from error

    def _disable(self, program: Program, reason: str, detail: str = "") -> None:
        """This graph runs its original from now on."""
        program.reason = reason
        for instance in list(self._instances.values()):
            if instance.runs(program):
                instance.program.reason = reason
                self._swapper.back(instance, reason, detail)
        key = program.key if program.swapped else None
        fields = {"reason": reason, "detail": detail, "key": key}
        self._events.write("disabled", digest=program.digest, **fields)
        self._refuse(program.digest, reason, detail, loud=reason == reasons.UNMEASURED)

    # Steps under XLA

    def after_first_call(self, context: Any, name: bytes, inputs: Any) -> None:
        """A function has run once. Makes the body visible where XLA compiled all or part of it."""
        if os.getpid() != self._process or self._ended or self._config.mode == "off":
            return
        try:
            instance = self._instances.get(name)
            if instance is None:
                definition = context.get_function_def(name.decode())
                if not xla.is_compiled(definition):
                    return
                why = xla.why_left(self._tf)
                if why is not None:
                    raise reasons.Refused(reasons.MEMORY, why)
                if coordination_service.joined():
                    raise reasons.Refused(reasons.COLLECTIVE, "a replica's step under XLA")
                instance = self._bare_instance(context, name, definition)
            if instance.program.bodies and instance.program.reason is None:
                self._probe(context, instance, inputs if instance.lifted else None)
        except reasons.Refused as error:
            self._refuse("", error.reason, error.detail)
        except Exception as error:
            self._failed_itself(error)

    def _bare_instance(self, context: Any, name: bytes, definition: Any) -> Instance:
        """For a function that is one XLA program: its stitched arm calls the lifted copy."""
        program = Program("xla:" + name.decode(), bodies=[name.decode()])
        self._programs[program.digest] = program
        step = self._plugin.new_step()
        self._plugin.schedule(step, ORIGINAL, 0, 0)
        lifted = xla.add_lifted(context, definition)
        arm, begun = self._plugin.step_arm(step), self._plugin.step_begun(step)
        alternate = self._config.control > 0
        self._instances[name] = Instance(program, step, ORIGINAL, arm, begun, alternate, lifted)
        self._follow(name, program)
        return self._instances[name]

    def _probe(self, context: Any, instance: Instance, inputs: Any) -> None:
        """Shows Grappler the compiled bodies, which hands them in; swaps when all are answered."""
        program = instance.program
        self._caller.probing = program
        try:
            for body in program.bodies or []:
                variables = program.variables.get(body, {})
                xla.instantiate(context, body, variables, inputs)
        except reasons.Refused as error:
            self._disable(program, error.reason, error.detail)
        finally:
            self._caller.probing = None
        if program.reason is None and not program.parts:
            self._disable(program, reasons.XLA_NOT_LIFTED, "the compiled body was not shown")
        if instance.lifted is not None and any(part.for_results for part in program.parts):
            program.for_results = True
            self._time(instance)
        self._swapper.late(instance)

    # Swapping

    def _instance(self, caller: Hashable, program: Program) -> Instance:
        with self._lock:
            instance = self._instances.get(caller)
        if instance is not None:
            return instance
        first = self._swapper.first_arm(program)
        step = self._plugin.new_step()
        alternate = program.refused_late is None and self._config.control > 0
        arm, begun = self._plugin.step_arm(step), self._plugin.step_begun(step)
        instance = Instance(program, step, first, arm, begun, alternate)
        self._swapper.start(instance)
        with self._lock:
            instance = self._instances.setdefault(caller, instance)
        self._follow(caller, program)
        if program.for_results:
            self._time(instance)
        return instance

    def _follow(self, caller: Hashable, program: Program) -> None:
        """Tells at the end where the time of a caller's steps went, to whom runs the job: behind a
        gateway nobody reads it, and on a GPU it is the device that takes the time."""
        told = self._config.mode == "optimize" and self._config.baseline <= 0
        if told and self._config.gateway is None and not program.target.startswith("sm_"):
            self._recorder.follow(caller)

    def _time(self, instance: Instance) -> None:
        """Has the calls of an instance timed where they are made."""
        self.timed |= {key for key, known in self._instances.items() if known is instance}

    # Errors

    def recover(self, caller: Hashable, mark: int, lifted: bool) -> bool:
        """A call has raised an error to the user's program; never raises itself.

        True where it was to run a graph of ours that TensorFlow has not begun to run, this time or
        before: it may be one that TensorFlow does not take. The step's own graph is called instead.
        If that fails too the error is the user's, and all is as it was.
        """
        try:
            instance = self._instances.get(caller)
            if instance is None:
                return False
            if instance.tried:
                instance.tried = False
                self._swapper.resume(instance)
                return False
            if not lifted and instance.arm_of(mark) != STITCHED:
                return False
            instance.raised += caller not in self.timed  # there a pass is counted at its end
            if not instance.handed or instance.has_begun():
                return False
            instance.tried = True
            self._swapper.pause(instance)
            return True
        except Exception as own:
            self._failed_itself(own)
            return False

    def recovered(self, caller: Hashable, error: Exception) -> None:
        """TensorFlow has not taken a graph of ours, and has taken the step's own."""
        try:
            instance = self._instances[caller]
            instance.tried = False
            self._not_taken(instance, str(error).strip().splitlines()[0][:300])
        except Exception as own:
            self._failed_itself(own)

    def confirm(self, caller: Hashable, mark: int, lifted: bool) -> None:
        """Grappler may put its own graph in the place of one that is not valid, and says nothing:
        then no gate was passed."""
        try:
            self.unconfirmed.discard(caller)
            instance = self._instances[caller]
            arm = STITCHED if lifted else instance.arm_of(mark)
            if arm == STITCHED and not instance.has_begun():
                instance.keep_original()
                self._not_taken(instance, "it kept its own")
        except Exception as own:
            self._failed_itself(own)

    def _not_taken(self, instance: Instance, said: str) -> None:
        failure = f"TensorFlow does not take the graph: {said}"
        self._follower.blame(instance.program, failure)
        self._disable(instance.program, reasons.BAD_ARTIFACT, failure)

    def _charge(self) -> None:
        """Steps of which a kernel could not run go back to their original; regions that are not
        for the job's data are left out."""
        programs, instances = list(self._programs.values()), list(self._instances.values())
        for program, failure in self._follower.charge(programs):
            self._disable(program, plugin.reason_of(failure), failure)
        for fault in self._follower.faults(programs, instances):
            if not fault.lasting:
                self._refuse(fault.program.digest, fault.reason, fault.message)
                continue
            self._take_back(fault.program, fault.region, fault.reason, fault.message)
            self._say(fault.reason, f"region {fault.region}: {fault.message}")
            for instance in instances:
                if instance.runs(fault.program):
                    self._swapper.renew(instance)

    # Beside the job

    def _watch(self) -> None:
        while not self._ended and os.getpid() == self._process:
            try:
                self._tick()
            except Exception as error:
                self._failed_itself(error)
                self._unwatched = True  # and so no further step is swapped
                for program in list(self._programs.values()):
                    self._disable(program, reasons.HOOK_ERROR, "the watcher has failed")
                return
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

    def _tick(self) -> None:
        waiting = self._config.wait <= 0 and self._config.mode == "optimize"
        for program in list(self._programs.values()):
            unanswered = program.artifact is None and program.bodies is None
            asked = waiting or program.for_results
            if asked and unanswered and program.reason is None:
                try:
                    if program.unsubmitted is None:
                        self._look(program)
                    elif self._calls(program) > FEW_CALLS:
                        self._hand_in(program)
                except reasons.Refused as error:
                    self._disable(program, error.reason, error.detail)
            if program.reason is None and program.key and self._source.revoked(program.key):
                self._disable(program, reasons.REVOKED, f"artifact {program.key[:12]}")
        self._charge()
        self._joined.tick(self._disable)
        for instance in list(self._instances.values()):
            if waiting or self._config.baseline > 0 or instance.program.for_results:
                self._swapper.late(instance)
            self._swapper.compare(instance)
            self._follower.follow(instance)
        if time.monotonic() >= self._savings_due:
            self._savings_due = time.monotonic() + SAVINGS_SECONDS
            self._follower.report_savings(list(self._instances.values()))

    def _calls(self, program: Program) -> int:
        """How often what runs a program has been called."""
        users = [instance for instance in self._instances.values() if instance.runs(program)]
        arms = (ORIGINAL, STITCHED)
        return sum(self._plugin.calls(user.step, arm) for user in users for arm in arms)

    def _leave_seldom_called(self) -> None:
        for program in self._programs.values():
            parts = program.parts or [program]
            if program.reason is None and any(part.unsubmitted is not None for part in parts):
                program.reason = reasons.FEW_CALLS
                detail = f"{parts[0].kind}, called {self._calls(program)} times"
                self._refuse(program.reported, reasons.FEW_CALLS, detail)

    def _end(self) -> None:
        """At an orderly exit."""
        if os.getpid() != self._process or self._ended:
            return
        self._ended = True
        self._wake.set()
        try:
            instances = list(self._instances.values())
            for instance in instances:
                self._follower.follow(instance)
            self._charge()
            self._follower.finish(list(self._programs.values()), instances)
            self._follower.report_savings(instances)
            for program, whole in self._follower.totals(instances):
                if not whole.measured:
                    detail = f"{whole.steps} stitched steps, {whole.pairs} pairs"
                    self._refuse(program.reported, reasons.UNMEASURED, detail)
            steps = self._follower.step_figures(instances)
            self._leave_seldom_called()
            for caller, instance in self._instances.items():
                program = instance.program
                for figures in self._recorder.told(caller, program):
                    self._events.write("parts", digest=program.reported, **figures)
            self._events.write("end", counters=self._plugin.counters(), steps=steps)
            self._source.finish()
            pending = [p for p in self._programs.values() if not p.ready and p.reason is None]
            if pending and self._config.mode == "optimize":
                self._say(reasons.NO_ARTIFACT, "none arrived before the end of the run")
        except Exception as error:
            self._failed_itself(error)
