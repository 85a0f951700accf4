"""From a request to an artifact: the worker's whole job, as a plain list of stages.

`optimize` runs in a child process of `stitch run` (cli/optimize.py) or of a cluster worker. It
reads the request from the store, and whatever happens leaves an answer there: pending while it
works (with the stage and how far it is), then ready with the artifact's key, or refused with the
reason.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stitchcore.artifact import package
from stitchcore.artifact.keys import artifact_key, settings_text
from stitchcore.artifact.manifest import Expectation, Manifest, Patch
from stitchcore.artifact.package import Unsigned
from stitchcore.artifact.sign import load_or_create_key
from stitchcore.artifact.store import Store, open_store
from stitchcore.autotune.regions import Tuning, file_of, tuned
from stitchcore.compiler import restart as edited
from stitchcore.compiler.regions import Build, build, program, stitched_share
from stitchcore.compiler.stages import BuildOptions, Elsewhere
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.cost import total
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir.module import Module
from stitchcore.launch.region_program import RegionProgram
from stitchcore.optimize import dump
from stitchcore.optimize import report as reporting
from stitchcore.optimize.report import Outcome
from stitchcore.optimize.request import Request, read_request
from stitchcore.options import Options
from stitchcore.toolchain.c_compiler import find_compiler
from stitchcore.toolchain.nvrtc import nvrtc_version
from stitchcore.verify.regions import Proof, measure, verify
from stitchcore.verify.testbed import Bench, bench_of

KERNEL_ABI = 1
Report = Callable[[str, int, int], None]
"""Told the stage, and how much of it is done of how much."""


@dataclass(frozen=True)
class Work:
    """What the stages have made so far, from left to right.

    `regions` maps each region's name to its structure's key; `lowered`, `modules` and `programs`
    are by structure. `fallbacks` are the manifest's `functions`, `live_bytes` those of the stitched
    step by the estimate. `seconds` are wall times by stage.
    """

    request: Request
    device: Device
    options: Options
    report: Report
    elsewhere: Elsewhere | None = None
    bench: Bench | None = None
    partition: Any = None
    regions: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)
    lowered: Mapping[str, Any] = field(default_factory=dict)
    made: Build | None = None
    proof: Proof | None = None
    programs: Mapping[str, RegionProgram] = field(default_factory=dict)
    fallbacks: str = ""
    live_bytes: int = 0
    patch: Patch | None = None
    tuning: Tuning | None = None
    refusals: tuple[Refusal, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


def optimize(
    request: Path, store: str, device: Device, options: Options, prove_regions: bool = True
) -> str | Refusal:
    """Make the artifact of the request in folder `request` and publish it in `store`.

    Returns the artifact's key, or the Refusal that is also the request's answer. A request whose
    artifact exists is answered at once. `prove_regions` False leaves verification and timing out
    (to time the build alone); such artifacts are never published.
    """
    opened = open_store(store)
    digest = request.name
    try:
        asked = read_request(request)
        options = _options_of(options, digest)
        key = key_of(asked, device, options)
        ready = {"status": "ready", "key": key} | ({"edited": True} if options.restart else {})
        known = package.exists(opened, key)
        if known and (options.dump is None or options.dump.exists()):
            opened.answer(digest, ready)
            return key

        def report(stage: str, done: int, total_: int) -> None:
            pending = {"status": "pending", "stage": stage, "done": done, "total": total_}
            opened.answer(digest, pending)

        work = _run(Work(asked, device, options, report), prove_regions)
        if prove_regions:
            if not known:
                manifest, libraries, files = _packed(work, key)
                signing = load_or_create_key(options.key)
                package.publish(opened, manifest, libraries, signing, files)
            opened.answer(digest, ready)
        return key
    except Refused as refused:
        return _refuse(opened, digest, refused.refusal, options.restart is not None)
    except Exception as error:
        detail = "".join(traceback.format_exception_only(error)).strip()
        failure = Refusal("worker", Reason.WORKER_FAILED, detail)
        _refuse(opened, digest, failure, options.restart is not None)
        raise


def produce(
    request: Request,
    device: Device,
    options: Options,
    report: Report,
    elsewhere: Elsewhere | None = None,
    bench: Bench | None = None,
) -> Unsigned:
    """The artifact of a request, unsigned, published nowhere: what the compile child of a cluster's
    worker makes. Its kernels are compiled by `elsewhere`, where there is one, and proved on `bench`
    (default: what this machine has). Raises Refused."""
    own = _options_of(options, request.digest)
    work = _run(Work(request, device, own, report, elsewhere, bench))
    return package.unsigned(*_packed(work, key_of(request, device, options)))


def _run(work: Work, prove_regions: bool = True) -> Work:
    stages = [s for s in STAGES if prove_regions or s.name not in PROVING]
    try:
        for number, stage in enumerate(stages):
            work.report(stage.name, number, len(stages))
            start = time.perf_counter()
            work = stage.run(work)
            work = replace(work, seconds={**work.seconds, stage.name: time.perf_counter() - start})
            _dump(work, stage)
    finally:
        if work.bench is not None:
            work.bench.close()
    return work


def _options_of(options: Options, digest: str) -> Options:
    """Dumps of a request go to a folder of its own; an edited stage is of the request in whose
    folder it lies."""
    if options.planner not in PLANNERS:
        detail = f"{options.planner!r} is no planner; there is {', '.join(PLANNERS)}"
        raise Refused("STITCH_PLANNER", Reason.WORKER_FAILED, detail)
    name, restart = digest[:12], options.restart
    return replace(
        options,
        dump=options.dump / name if options.dump is not None else None,
        restart=restart if restart is not None and name in restart.parts else None,
    )


def _dump(work: Work, stage: Stage) -> None:
    folder = work.options.dump
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{STAGES.index(stage):02d}_{stage.name}.txt"
        (folder / name).write_text(stage.text(work, folder), encoding="utf-8")


def key_of(request: Request, device: Device, options: Options) -> str:
    """The artifact's key. The digest covers the input signature: shapes are hashed with nodes.
    Raises Refused(NO_COMPILER)."""
    compiler = _compiler(device)
    settings = settings_text(options.signature, request.meta.get("preserve", ()), request.tenant)
    if options.restart is not None:
        settings += f";{options.restart.name}={edited.read(options.restart).text}"
    return artifact_key(
        request.digest, "", device.target, request.tf, KERNEL_ABI, compiler, settings
    )


def _compiler(device: Device) -> str:
    """Raises Refused(NO_COMPILER)."""
    return find_compiler().version if device.kind == "cpu" else f"NVRTC {nvrtc_version()}"


def _refuse(store: Store, digest: str, refusal: Refusal, edited_: bool) -> Refusal:
    detail = ": ".join(filter(None, (refusal.subject, refusal.detail)))
    answer = {"status": "refused", "reason": refusal.reason.value, "detail": detail}
    store.answer(digest, answer | ({"edited": True} if edited_ else {}))
    return refusal


# ---- stages ------------------------------------------------------------------------------------
def _partition(work: Work) -> Work:
    from stitchcore.tensorflow.partition import partition
    from stitchcore.tensorflow.request import read_graph

    preserve = work.request.meta.get("preserve", ())
    found = partition(read_graph(work.request.graph), preserve, kind=work.device.kind)
    return replace(work, partition=found, refusals=found.refusals)


def _lower(work: Work) -> Work:
    """One lowering per distinct structure."""
    from stitchcore.tensorflow.lower import lower, subgraph

    regions: dict[str, str] = {}
    functions: dict[str, Any] = {}
    lowered: dict[str, Any] = {}
    failed: dict[str, Refusal] = {}
    refusals = list(work.refusals)
    for number, region in enumerate(work.partition.regions):
        work.report("lower", number, len(work.partition.regions))
        try:
            function = subgraph(work.partition, region)
            if function.key in failed:
                raise Refused(region.name, failed[function.key].reason, "as an equal region")
            if function.key not in lowered:
                try:
                    lowered[function.key] = lower(function, region.name)
                except Refused as refused:
                    failed[function.key] = refused.refusal
                    raise
            regions[region.name] = function.key
            functions[region.name] = function
        except Refused as refused:
            refusals.append(refused.refusal)
    return replace(
        work, regions=regions, functions=functions, lowered=lowered, refusals=tuple(refusals)
    )


def _build(work: Work) -> Work:
    modules: dict[str, Module] = {key: low.module for key, low in work.lowered.items()}
    options = replace(build_options(work.options), elsewhere=work.elsewhere)
    made = build(modules, work.device, options, work.report)
    refused = {refusal.subject: refusal for refusal in made.refusals}
    return _with_programs(_with_refused(replace(work, made=made), refused))


def _with_programs(work: Work) -> Work:
    assert work.made is not None
    programs: dict[str, RegionProgram] = {}
    refused: dict[str, Refusal] = {}
    for key in work.made.regions:
        try:
            programs[key] = program(work.made, key, work.device)
        except Refused as error:
            refused[key] = error.refusal
    return _with_refused(replace(work, programs=programs), refused)


def _with_refused(work: Work, refused: Mapping[str, Refusal]) -> Work:
    """`refused` structures, by key, told of each of their regions: once, for its first reason."""
    told = {refusal.subject for refusal in work.refusals}
    added = (
        replace(refused[key], subject=name)
        for name, key in work.regions.items()
        if key in refused and name not in told
    )
    return replace(work, refusals=(*work.refusals, *added))


def build_options(options: Options) -> BuildOptions:
    """What the compiler's stages need of the process's settings."""
    return BuildOptions(options.planner, options.jobs, options.cache, options.dump, options.restart)


def _tune(work: Work) -> Work:
    """Let measurement overrule plans, where the settings give it time."""
    options = work.options
    if not options.tune or options.restart is not None or work.device.kind == "gpu":
        return work
    assert work.made is not None
    given = replace(build_options(options), elsewhere=work.elsewhere)
    made, found = tuned(work.made, work.device, given, options.tune, work.report)
    figures = {**work.figures, "Tuned": found.figure()}
    return _with_programs(replace(work, made=made, tuning=found, figures=figures))


def _verify(work: Work) -> Work:
    """Judge each distinct region against TensorFlow, and drop what is wrong."""
    bench = work.bench or bench_of(work.device)
    if isinstance(bench, Refusal):
        why = f"{Reason.UNMEASURED.value}: {bench}"
        return replace(work, figures={**work.figures, "Proved and measured": why})
    assert work.made is not None
    references = {key: bench.references(work.lowered[key].subgraph) for key in work.programs}
    proof = verify(work.made, work.programs, references, work.report, bench.runners)
    return _proved(replace(work, bench=bench), proof)


def _measure(work: Work) -> Work:
    """Time each distinct region beside TensorFlow and XLA, those that weigh most first, and drop
    what is slower."""
    if work.bench is None:
        return work
    assert work.made is not None
    assert work.proof is not None
    built, uses = work.made.regions, Counter(work.regions.values())
    ordered = sorted(
        work.programs, key=lambda key: uses[key] * built[key].plan.planned.seconds, reverse=True
    )
    programs = {key: work.programs[key] for key in ordered}
    threads = int(work.request.meta.get("threads", 1))
    rivals = {key: work.bench.rivals(work.lowered[key].subgraph) for key in ordered}
    given = (work.made, programs, rivals, work.proof, work.device, threads, work.report)
    proof = measure(*given, runners_of=work.bench.runners)
    return _proved(work, proof)


def _proved(work: Work, proof: Proof) -> Work:
    kept = {key: value for key, value in work.programs.items() if key not in proof.refused}
    return _with_refused(replace(work, proof=proof, programs=kept), proof.refused)


def _fallback(work: Work) -> Work:
    """Give each launch the function that does its work where its kernel cannot."""
    from stitchcore.tensorflow.fallback import library, with_fallbacks

    updates = {work.regions.get(one.name): len(one.updates) for one in work.partition.regions}
    programs: dict[str, RegionProgram] = {}
    refused: dict[str, Refusal] = {}
    for key, made in work.programs.items():
        try:
            function = work.lowered[key].subgraph
            programs[key] = with_fallbacks(function, made, updates.get(key, 0))
        except Refused as error:
            refused[key] = error.refusal
    fallbacks = package.packed_functions(library(programs.values()))
    return _with_refused(replace(work, programs=programs, fallbacks=fallbacks), refused)


def _limit(work: Work) -> Work:
    """Leave regions as they were with which a step would hold more memory than the untouched."""
    from stitchcore.tensorflow.live_bytes import limited

    refused, before, after = limited(work.partition, _chosen(work))
    figure = f"{before.bytes:,} → {after.bytes:,}"
    if refused:
        figure += f", {len(refused)} regions left as they were for it"
    return replace(
        work,
        regions={name: key for name, key in work.regions.items() if name not in refused},
        refusals=work.refusals + tuple(refused.values()),
        figures={**work.figures, "Live bytes of a step, estimated": figure},
        live_bytes=after.bytes,
    )


def _chosen(work: Work) -> list[tuple[Any, Any, RegionProgram]]:
    return [
        (region, work.functions[region.name], work.programs[key])
        for region in work.partition.regions
        if (key := work.regions.get(region.name, "")) in work.programs
    ]


def _patch(work: Work) -> Work:
    from stitchcore.tensorflow.patch import patch

    made, refused = patch(work.partition, _chosen(work))
    refusals = (*work.refusals, *refused.values())
    if not made.regions:
        counts = Counter(refusal.reason for refusal in refusals)
        reason, _ = counts.most_common(1)[0] if counts else (Reason.REGION_TOO_SMALL, 0)
        raise Refused("graph", reason, "no region of this graph can be stitched")
    kept = {name: key for name, key in work.regions.items() if name not in refused}
    return replace(work, patch=made, regions=kept, refusals=refusals)


def _rehearse(work: Work) -> Work:
    """Hold the patched graph against TensorFlow's rules, and run it once with made-up values."""
    from stitchcore.tensorflow.rehearsal import rehearse

    assert work.made is not None
    assert work.patch is not None
    found = rehearse(
        work.partition,
        work.patch,
        package.kernel_entries(work.programs.values()),
        tuple(one.data for one in work.made.libraries),
        work.fallbacks,
        work.live_bytes,
        run=work.device.kind == "cpu",
    )
    kept = tuple(one for one in work.patch.regions if one.name not in found.refused)
    return replace(
        work,
        patch=Patch(kept),
        regions={name: key for name, key in work.regions.items() if name not in found.refused},
        refusals=work.refusals + tuple(found.refused.values()),
        figures={**work.figures, "Rehearsal of the patched step": found.figure},
    )


@dataclass(frozen=True)
class Stage:
    """`text` tells what the stage made, for people; it may write further files to the folder."""

    name: str
    run: Callable[[Work], Work]
    text: Callable[[Work, Path], str]


STAGES: tuple[Stage, ...] = (
    Stage("partition", _partition, lambda w, _: dump.partition(w.partition)),
    Stage("lower", _lower, lambda w, to: dump.lowered(w.regions, w.lowered, w.refusals, to)),
    Stage("build", _build, lambda w, _: dump.built(w.made, w.programs) if w.made else ""),
    Stage("tune", _tune, lambda w, _: dump.tuned(w.tuning)),
    Stage("verify", _verify, lambda w, _: dump.verified(w.proof) if w.proof else ""),
    Stage("measure", _measure, lambda w, _: dump.measured(w.proof) if w.proof else ""),
    Stage("fallback", _fallback, lambda w, _: dump.fallbacks(w.programs)),
    Stage("limit", _limit, lambda w, _: dump.limited(w.figures, w.refusals)),
    Stage("patch", _patch, lambda w, _: dump.patch(w.patch) if w.patch else ""),
    Stage("rehearse", _rehearse, lambda w, _: dump.rehearsed(w.figures, w.refusals)),
)
"""From a request to a patch, in order; publishing follows."""
PROVING = frozenset({"tune", "verify", "measure", "rehearse"})


# ---- the artifact ------------------------------------------------------------------------------
def _packed(work: Work, key: str) -> tuple[Manifest, tuple[bytes, ...], dict[str, bytes]]:
    """Manifest, libraries and reports."""
    assert work.made is not None
    assert work.patch is not None
    libraries = tuple(one.data for one in work.made.libraries)
    manifest = Manifest(
        key=key,
        digest=work.request.digest,
        target=work.device.target,
        tf=work.request.tf,
        compiler=_compiler(work.device),
        libraries=package.library_entries(libraries),
        kernels=package.kernel_entries(work.programs.values()),
        patch=work.patch,
        expect=_expectation(work),
        refusals=dict(Counter(refusal.reason.value for refusal in work.refusals)),
        measured=work.bench is not None,
        functions=work.fallbacks,
    )
    outcome = Outcome(
        work.request.digest,
        work.device,
        work.partition,
        work.regions,
        work.made,
        work.programs,
        work.proof,
        work.refusals,
        manifest.expect,
        work.seconds,
        work.figures,
    )
    files = {**reporting.files(outcome), **file_of(work.tuning)}
    return manifest, libraries, files


def _expectation(work: Work) -> Expectation:
    """Sums over the graph's stitched regions, operations and bytes before, kernels after; and
    bytes of the whole step."""
    from stitchcore.tensorflow.coverage import coverage, region_bytes

    assert work.made is not None
    made, graph = work.made.regions, work.partition.graph
    stitched = {name: key for name, key in work.regions.items() if key in work.programs}
    before = total(made[key].plan.unfused for key in stitched.values())
    after = total(made[key].plan.planned for key in stitched.values())
    sizes = [
        region_bytes(graph, region.members)
        for region in work.partition.regions
        if region.name in stitched
    ]
    covered = coverage(
        work.partition,
        {name: stitched_share(made[key], work.device) for name, key in stitched.items()},
        {name: made[key].plan.planned.bytes for name, key in stitched.items()},
    )
    return Expectation(
        kernels_before=sum(map(len, sizes)),
        kernels_after=sum(len(work.programs[key].launches) for key in stitched.values()),
        bytes_before=sum(map(sum, sizes)),
        bytes_after=after.bytes,
        bytes_saveable=covered.saveable,
        bytes_saved=covered.saved,
        bytes_stitched=covered.stitched,
        bytes_intensive=covered.intensive,
        seconds_before=before.seconds,
        seconds_after=after.seconds,
    )
