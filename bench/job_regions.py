"""The regions of a training script's graphs, as the job's worker gets them, under each planner.

A script runs a few steps in `observe` mode, which gives the requests that it sends to its worker.
Their regions are lowered and planned by the worker's own stages.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from stitchcore.cli import run_job as jobs
from stitchcore.codegen import c as emit_c
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Refused
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from tests import lean
from tests.jobs import judge as judges

T = TypeVar("T")
STEPS = 3
REFUSED = ("refused",)
"""What a region that no kernels can cover is compared as."""


@dataclass(frozen=True)
class Planned:
    """One planner on all regions of a job. `launches` are sources' digests in launch order, by
    region; `estimated` seconds of one run of each region, by region, `planning` seconds of all."""

    launches: Mapping[str, tuple[str, ...]]
    estimated: Mapping[str, float]
    planning: float


# ---- a job's regions ---------------------------------------------------------------------------
def requests(job: judges.Job, folder: Path) -> list[Path]:
    """The requests that a few steps of `job` leave in a store in `folder`, or left there before.
    Raises JobFailed."""
    settings = {
        "PYTHONPATH": str(judges.ROOT),
        "STITCH_MODE": "observe",
        "STITCH_CACHE": str(folder / "cache"),
        "STITCH_KEY": str(folder / "signing.key"),
    }
    store = folder / "store"
    env = jobs.environment(lean.environment(**settings), store, "capture", "0" * 64, 0)
    if not (folder / "out" / "run.json").exists():
        line = job.command(folder / "out", STEPS)
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise judges.JobFailed(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return sorted(path.parent for path in store.glob("requests/*/graph.pb"))


@dataclass(frozen=True)
class Regions:
    """The distinct regions of a job, lowered, by structure, how often each stands in its graphs,
    what they are for, and threads of the job."""

    modules: Mapping[str, Module]
    uses: Mapping[str, int]
    device: Device
    threads: int


def lowered(folders: Sequence[Path], scratch: Path) -> Regions:
    """What a worker's first stages make of the requests. Raises Refused, JobFailed."""
    from stitchcore import options  # TensorFlow, which --help does without
    from stitchcore.optimize import pipeline  # TensorFlow, which --help does without
    from stitchcore.optimize.request import read_request

    if not folders:
        raise judges.JobFailed("the job handed over no graph")
    first = pipeline.STAGES[: [stage.name for stage in pipeline.STAGES].index("build")]
    settings = options.read({"HOME": str(scratch)})
    modules: dict[str, Module] = {}
    uses: Counter[str] = Counter()
    for folder in folders:
        asked = read_request(folder)
        device = DEVICES[asked.meta["target"]]
        work = pipeline.RequestState(asked, device, settings, lambda *_: None)
        work = run(first, work)
        modules |= {key[:12]: one.module for key, one in work.lowered.items()}
        uses.update(key[:12] for key in work.regions.values())
    return Regions(modules, dict(uses), device, int(asked.meta.get("threads", 1)))


# ---- planning ----------------------------------------------------------------------------------
def source_digest(kernel: Kernel) -> str:
    """Equal for kernels with the same C source but for their names, which tell their planner."""
    plain = replace(kernel, name="kernel", provenance=())
    return sha256(emit_c.render([plain]).encode()).hexdigest()


def planned(modules: Mapping[str, Module], device: Device, planner: str) -> Planned:
    """All regions by one planner, as `compiler.regions.compile_regions` does but for compiling."""
    launches: dict[str, tuple[str, ...]] = {}
    estimated: dict[str, float] = {}
    planning = 0.0
    for key, module in modules.items():
        start = processor_seconds()
        try:
            state = run(PLANNED, ModuleState(module, device, BuildOptions(planner)))
        except Refused:
            launches[key] = REFUSED
            continue
        finally:
            planning += processor_seconds() - start
        assert state.plan is not None
        if state.plan.opaque:
            launches[key] = REFUSED
            continue
        sources = [source_digest(kernel) for kernel in state.kernels]
        launches[key] = tuple(sources[index] for index in state.of)
        estimated[key] = state.plan.planned.seconds
    return Planned(launches, estimated, planning)


def processor_seconds() -> float:
    """Of this process and of children that have ended: the solver of `exact` is one. (`os.times`
    would cut each of the four off to a tick of 10 ms.)"""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def in_child(call: Callable[[], T]) -> T:
    """`call` in a fork of this process: nothing that it remembers stays. Raises EOFError where the
    child died."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sending.send(call()))
    child.start()
    sending.close()
    try:
        return receiving.recv()  # type: ignore[no-any-return]
    finally:
        child.join()
