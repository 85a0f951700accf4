"""From a request to a signed artifact: the worker's whole job, as one printed list of stages.

`optimize` runs in a child process of `stitch run` (cli/optimize.py) or of a cluster worker. It
reads the request from the store, and whatever happens leaves an answer there: pending while it
works (with the stage and how far it is), then ready with the artifact's key, or refused with the
reason.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
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
from stitchcore.compiler import performance_library, pipeline
from stitchcore.compiler.pipeline import Dump, Progress, Stage, numbered
from stitchcore.compiler.regions import (
    CompiledRegions,
    compile_regions,
    extended,
    outline,
    program,
    stitched_share,
)
from stitchcore.compiler.stages import RemoteCompiler, build_options
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion import mechanisms
from stitchcore.fusion.cost import total
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.transforms import keep_checks
from stitchcore.hlo.transforms.expand import expand
from stitchcore.inject.contract import KERNEL_ABI
from stitchcore.launch.region_program import RegionProgram
from stitchcore.optimize import stage_texts
from stitchcore.optimize.report import Outcome, report_files
from stitchcore.optimize.request import Request, read_request
from stitchcore.options import Options
from stitchcore.toolchain.c_compiler import find_compiler
from stitchcore.toolchain.nvrtc import nvrtc_version
from stitchcore.verify.regions import Verification, measure, verify
from stitchcore.verify.testbed import Testbed, open_testbed
from stitchcore.verify.tolerance import between, input_units

CUT_FOLDER = "cut"
"""The dump folder of regions that others were cut into."""


@dataclass(frozen=True)
class RequestState:
    """What the stages have made so far, from left to right.

    `regions` maps each region's name to its structure's key; `lowered`, `modules` and `programs`
    are by structure. `fallbacks` are the manifest's `functions`, `live_bytes` those of the stitched
    step by the estimate. `opened` is closed when the last stage has run, or one has failed.
    """

    request: Request
    device: Device
    options: Options
    report: Progress
    dump: Dump = field(default_factory=Dump)
    remote_compile: RemoteCompiler | None = None
    testbed: Testbed | None = None
    opened: ExitStack = field(default_factory=ExitStack)
    partition: Any = None
    regions: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)
    lowered: Mapping[str, Any] = field(default_factory=dict)
    compiled: CompiledRegions | None = None
    verification: Verification | None = None
    programs: Mapping[str, RegionProgram] = field(default_factory=dict)
    fallbacks: str = ""
    live_bytes: int = 0
    patch: Patch | None = None
    tuning: Tuning | None = None
    refusals: tuple[Refusal, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)


def optimize(
    request: Path, store: str, device: Device, options: Options, verify_regions: bool = True
) -> str | Refusal:
    """Make the artifact of the request in folder `request` and publish it in `store`.

    Returns the artifact's key, or the Refusal that is also the request's answer. A request whose
    artifact exists is answered at once. `verify_regions` False leaves verification and timing out
    (to time the build alone); such artifacts are never published.
    """
    opened = open_store(store)
    digest = request.name
    marks: dict[str, Any] = {"settings": options.signature}
    try:
        parsed = read_request(request)
        dump = _dump_of(options, digest)
        marks |= {"edited": True} if dump.restart is not None else {}
        key = key_of(parsed, device, options)
        ready = {"status": "ready", "key": key} | marks
        known = package.exists(opened, key)
        if known and (dump.folder is None or dump.folder.exists()):
            opened.answer(digest, ready)
            return key

        def report(stage: str, done: int, total_: int) -> None:
            pending = {"status": "pending", "stage": stage, "done": done, "total": total_}
            opened.answer(digest, pending)

        start = RequestState(parsed, device, options, report, dump)
        state, seconds = _run(start, verify_regions)
        if verify_regions:
            if not known:
                manifest, libraries, files = _packed(state, key, seconds)
                signing = load_or_create_key(options.key)
                package.publish(opened, manifest, libraries, signing, files)
            opened.answer(digest, ready)
        return key
    except Refused as refused:
        return refuse(opened, digest, refused.refusal, marks)
    except Exception as error:
        detail = "".join(traceback.format_exception_only(error)).strip()
        failure = Refusal("worker", Reason.WORKER_FAILED, detail)
        refuse(opened, digest, failure, marks)
        raise


def produce(
    request: Request,
    device: Device,
    options: Options,
    report: Progress,
    remote_compile: RemoteCompiler | None = None,
    testbed: Testbed | None = None,
) -> Unsigned:
    """The artifact of a request, unsigned, published nowhere: what the compile child of a cluster's
    worker makes. Its kernels are compiled by `remote_compile`, where there is one, and verified on
    `testbed` (default: what this machine has). Raises Refused."""
    dump = _dump_of(options, request.digest)
    start = RequestState(request, device, options, report, dump, remote_compile, testbed)
    state, seconds = _run(start)
    return package.unsigned(*_packed(state, key_of(request, device, options), seconds))


def _run(
    state: RequestState, verify_regions: bool = True
) -> tuple[RequestState, Mapping[str, float]]:
    """What the stages make of `state`, and their wall seconds by name."""
    if state.device.kind == "gpu":
        from stitchcore.tensorflow.visible_gpus import leave_out_unusable

        leave_out_unusable()
    stages = [stage for stage in STAGES if verify_regions or stage.name not in VERIFICATION_STAGES]
    seconds: dict[str, float] = {}
    with state.opened:
        if state.testbed is not None:
            state.opened.callback(state.testbed.close)
        done = pipeline.run(stages, state, state.dump, seconds=seconds, progress=state.report)
    return done, seconds


def _dump_of(options: Options, digest: str) -> Dump:
    """Dumps of a request go to a folder of its own; an edited stage is of the request in whose
    folder it lies. Raises Refused for settings that no request can be made under."""
    if options.planner not in PLANNERS:
        detail = f"{options.planner!r} is no planner; there is {', '.join(PLANNERS)}"
        raise Refused("STITCH_PLANNER", Reason.WORKER_FAILED, detail)
    try:
        mechanisms.without(options.without)
    except ValueError as error:
        raise Refused("STITCH_WITHOUT", Reason.WORKER_FAILED, str(error)) from None
    return Dump(options.dump, options.restart).sub(digest[:12])


def key_of(request: Request, device: Device, options: Options) -> str:
    """The artifact's key. The digest covers the input signature: shapes are hashed with nodes.
    Raises Refused(NO_COMPILER)."""
    compiler = _compiler(device)
    settings = settings_text(options.signature, request.meta.get("preserve", ()), request.tenant)
    restart = _dump_of(options, request.digest).restart
    if restart is not None:
        settings += f";{restart.name}={pipeline.read(restart).text}"
    return artifact_key(
        request.digest, "", device.target, request.tf, KERNEL_ABI, compiler, settings
    )


def _compiler(device: Device) -> str:
    """Raises Refused(NO_COMPILER)."""
    return find_compiler().version if device.kind == "cpu" else f"NVRTC {nvrtc_version()}"


def refuse(store: Store, digest: str, refusal: Refusal, marks: Mapping[str, Any]) -> Refusal:
    """Answer the request with `refusal`; `marks` tell under which settings, and whether of an
    edited stage."""
    detail = ": ".join(filter(None, (refusal.subject, refusal.detail)))
    answer = {"status": "refused", "reason": refusal.reason.value, "detail": detail}
    store.answer(digest, {**answer, **marks})
    return refusal


# ---- stages ------------------------------------------------------------------------------------
def _partition(state: RequestState) -> RequestState:
    return _cut_into_regions(state, {})


def _cut_into_regions(state: RequestState, excluded: Mapping[str, Reason]) -> RequestState:
    """Regions without the `excluded` operations, by name. What a cut before has found of the
    graph's sizes holds for another."""
    from stitchcore.tensorflow.partition import partition
    from stitchcore.tensorflow.request import read_graph

    preserve = state.request.meta.get("preserve", ())
    allowed = Mechanism.GEMM in mechanisms.without(state.options.without)
    cut = partition(
        read_graph(state.request.graph),
        preserve,
        excluded,
        kind=state.device.kind,
        multiplies=state.device if allowed else None,
        executor=state.device,
        sizes=None if state.partition is None else state.partition.sizes,
    )
    return replace(state, partition=cut, refusals=cut.refusals)


def _lower(state: RequestState) -> RequestState:
    """One lowering per distinct structure. An operation that may fail on its data, in a region
    where not all of it is needed by what follows from it, is left to TensorFlow, not the region."""
    excluded: dict[str, Reason] = {}
    while True:
        state = _lowered(state)
        if not (unobserved := _unobserved(state)):
            return state
        excluded |= dict.fromkeys(unobserved, Reason.DATA_DEPENDENT_ERROR)
        state = _cut_into_regions(state, excluded)


def _unobserved(state: RequestState) -> list[str]:
    """Operations with a check that their region would not make whole."""
    from stitchcore.tensorflow.op_allowlist import CHECKED

    found: list[str] = []
    for region in state.partition.regions:
        low = state.lowered.get(state.regions.get(region.name, ""))
        if low is None or not keep_checks.checks(low.module):
            continue
        try:
            keep_checks.keep(low.module, expand(low.module).module)
        except Refused:
            nodes = (state.partition.graph.nodes[i] for i in region.members)
            found += [node.name for node in nodes if node.op in CHECKED]
    return found


def _lowered(state: RequestState) -> RequestState:
    from stitchcore.tensorflow.lower import lower, subgraph

    regions: dict[str, str] = {}
    functions: dict[str, Any] = {}
    lowered = dict(state.lowered)
    failed: dict[str, Refusal] = {}
    refusals = list(state.refusals)
    for number, region in enumerate(state.partition.regions):
        state.report("lower", number, len(state.partition.regions))
        try:
            function = subgraph(state.partition, region)
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
            refusals.append(_of_region(refused.refusal, region.name))
    used = {key: lowered[key] for key in regions.values()}
    return replace(
        state, regions=regions, functions=functions, lowered=used, refusals=tuple(refusals)
    )


def _of_region(refusal: Refusal, region: str) -> Refusal:
    """A refusal of an instruction is one of its region, or nobody could tell where it belongs."""
    if refusal.subject == region:
        return refusal
    detail = ": ".join(filter(None, (refusal.subject, refusal.detail)))
    return Refusal(region, refusal.reason, detail)


def _build(state: RequestState) -> RequestState:
    modules: dict[str, Module] = {key: low.module for key, low in state.lowered.items()}
    options = build_options(state.options, state.device, remote_compile=state.remote_compile)
    edited_part = state.dump.sub(CUT_FOLDER).restart is not None
    dump = replace(state.dump, restart=None) if edited_part else state.dump
    compiled = compile_regions(modules, state.device, options, dump, state.report)
    refused = {refusal.subject: refusal for refusal in compiled.refusals}
    figures = state.figures
    if state.options.library is not None:
        figures = {**figures, "Performance library": str(options.library)}
    state = replace(state, compiled=compiled, figures=figures)
    return _with_programs(_with_refused(state, refused))


def _with_programs(state: RequestState) -> RequestState:
    assert state.compiled is not None
    programs: dict[str, RegionProgram] = {}
    refused: dict[str, Refusal] = {}
    for key in state.compiled.regions:
        try:
            programs[key] = program(state.compiled, key, state.device)
        except Refused as error:
            refused[key] = error.refusal
    return _with_refused(replace(state, programs=programs), refused)


def _with_refused(state: RequestState, refused: Mapping[str, Refusal]) -> RequestState:
    """`refused` structures, by key, told of each of their regions: once, for its first reason."""
    refused_regions = {refusal.subject for refusal in state.refusals}
    added = (
        replace(refused[key], subject=name)
        for name, key in state.regions.items()
        if key in refused and name not in refused_regions
    )
    return replace(state, refusals=(*state.refusals, *added))


def _cut(state: RequestState) -> RequestState:
    """Cut regions with which a step would hold more memory than it may. Only what a cut makes is
    lowered and compiled."""
    from stitchcore.tensorflow.live_bytes import Chosen, allowed_bytes, peak
    from stitchcore.tensorflow.lower import lower, subgraph
    from stitchcore.tensorflow.memory_cuts import fitted

    assert state.compiled is not None
    lowered: dict[str, Any] = {}
    options = build_options(state.options, state.device, remote_compile=state.remote_compile)
    outlines = dict(state.programs)

    def make(partition: Any, region: Any) -> Chosen:
        function = subgraph(partition, region)
        if function.key not in outlines:
            lowered[function.key] = lower(function, region.name)
            module = lowered[function.key].module
            outlines[function.key] = outline(module, state.device, options)
        return region, function, outlines[function.key]

    before = peak(state.partition, ()).bytes
    allowed = allowed_bytes(state.partition, before, state.options.memory)
    done = fitted(state.partition, _chosen(state), allowed, make)
    if not done.cuts:
        return state
    gone = {cut.region for cut in done.cuts}
    added = {region.name: function for region, function, _ in done.chosen}
    regions = {name: key for name, key in state.regions.items() if name not in gone}
    functions = {name: one for name, one in state.functions.items() if name not in gone} | added
    used = {one.key: lowered[one.key] for one in added.values() if one.key in lowered}
    compiled = extended(
        state.compiled,
        {key: low.module for key, low in used.items()},
        state.device,
        options,
        state.dump.sub(CUT_FOLDER),
        state.report,
    )
    refused = {refusal.subject: refusal for refusal in compiled.refusals}
    figure = "; ".join(str(cut) for cut in done.cuts)
    state = replace(
        state,
        partition=done.partition,
        regions=regions | {name: function.key for name, function in added.items()},
        functions=functions,
        lowered={**state.lowered, **used},
        compiled=compiled,
        refusals=state.refusals + done.refused,
        figures={**state.figures, stage_texts.CUT: figure},
    )
    return _with_programs(_with_refused(state, refused))


def _tune(state: RequestState) -> RequestState:
    """Let measurement overrule plans, where the settings give it time."""
    options = state.options
    if not options.tune or state.dump.restart is not None or state.device.kind == "gpu":
        return state
    assert state.compiled is not None
    compiled, tuning, entries = tuned(
        state.compiled,
        state.device,
        build_options(state.options, state.device, remote_compile=state.remote_compile),
        options.tune,
        state.report,
    )
    figures = {**state.figures, "Tuned": tuning.figure()}
    if options.library is not None:
        try:
            performance_library.write(options.library, state.device, entries)
        except OSError as error:
            figures["Performance library, written"] = f"no: {error}"
    return _with_programs(replace(state, compiled=compiled, tuning=tuning, figures=figures))


def _verify(state: RequestState) -> RequestState:
    """Judge each distinct region against TensorFlow, and drop what is wrong."""
    testbed = state.testbed or open_testbed(state.device)
    if isinstance(testbed, Refusal):
        why = f"{Reason.UNMEASURED.value}: {testbed}"
        return replace(state, figures={**state.figures, "Proved and measured": why})
    if state.testbed is None:
        state.opened.callback(testbed.close)
    assert state.compiled is not None
    references = {key: testbed.references(state.lowered[key].subgraph) for key in state.programs}
    verification = verify(
        state.compiled,
        state.programs,
        references,
        state.report,
        testbed.runners,
        job_decides=state.device.kind == "cpu",
    )
    return _verified(replace(state, testbed=testbed), verification)


def _measure(state: RequestState) -> RequestState:
    """Time each distinct region beside TensorFlow, those that weigh most first, and drop what is
    slower."""
    if state.testbed is None:
        return state
    assert state.compiled is not None
    assert state.verification is not None
    compiled, uses = state.compiled.regions, Counter(state.regions.values())
    weights = {key: uses[key] * compiled[key].plan.planned.seconds for key in state.programs}
    threads = int(state.request.meta.get("threads", 1))
    baselines = {key: state.testbed.baselines(state.lowered[key].subgraph) for key in weights}
    verification = measure(
        state.compiled,
        state.programs,
        weights,
        baselines,
        state.verification,
        state.device,
        threads,
        state.report,
        runners_of=state.testbed.runners,
    )
    return _verified(state, verification)


def _verified(state: RequestState, verification: Verification) -> RequestState:
    programs = {
        key: value for key, value in state.programs.items() if key not in verification.refused
    }
    return _with_refused(
        replace(state, verification=verification, programs=programs), verification.refused
    )


def _fallback(state: RequestState) -> RequestState:
    """Give each launch the function that does its state where its kernel cannot."""
    from stitchcore.tensorflow.fallback import library, with_fallbacks

    assert state.compiled is not None
    updates = {
        state.regions.get(region.name): len(region.updates) for region in state.partition.regions
    }
    programs: dict[str, RegionProgram] = {}
    refused: dict[str, Refusal] = {}
    for key, program_ in state.programs.items():
        try:
            function = state.lowered[key].subgraph
            region = state.compiled.regions[key]
            module = region.module
            made = [value for pattern in region.plan.patterns for value in pattern.outputs]
            limits = between(module), input_units(module), between(module, made)
            programs[key] = with_fallbacks(function, program_, updates.get(key, 0), *limits)
        except Refused as error:
            refused[key] = error.refusal
    fallbacks = package.packed_functions(library(programs.values()))
    return _with_refused(replace(state, programs=programs, fallbacks=fallbacks), refused)


def _limit(state: RequestState) -> RequestState:
    """Leave regions as they were with which a step would hold more memory than the untouched."""
    from stitchcore.tensorflow.live_bytes import limited

    refused, before, after = limited(state.partition, _chosen(state), state.options.memory)
    figure = f"{before.bytes:,} → {after.bytes:,}"
    if refused:
        figure += f", {len(refused)} regions left as they were for it"
    return replace(
        state,
        regions={name: key for name, key in state.regions.items() if name not in refused},
        refusals=state.refusals + tuple(refused.values()),
        figures={**state.figures, "Live bytes of a step, estimated": figure},
        live_bytes=after.bytes,
    )


def _chosen(state: RequestState) -> list[tuple[Any, Any, RegionProgram]]:
    return [
        (region, state.functions[region.name], state.programs[key])
        for region in state.partition.regions
        if (key := state.regions.get(region.name, "")) in state.programs
    ]


def _patch(state: RequestState) -> RequestState:
    from stitchcore.tensorflow.patch import patch

    patched, refused = patch(state.partition, _chosen(state))
    refusals = (*state.refusals, *refused.values())
    if not patched.regions:
        counts = Counter(refusal.reason for refusal in refusals)
        reason, _ = counts.most_common(1)[0] if counts else (Reason.REGION_TOO_SMALL, 0)
        raise Refused("graph", reason, "no region of this graph can be stitched")
    regions = {name: key for name, key in state.regions.items() if name not in refused}
    return replace(state, patch=patched, regions=regions, refusals=refusals)


def _rehearse(state: RequestState) -> RequestState:
    """Hold the patched graph against TensorFlow's rules, and run it once with made-up values."""
    from stitchcore.tensorflow.rehearsal import rehearse

    assert state.compiled is not None
    assert state.patch is not None
    rehearsal = rehearse(
        state.partition,
        state.patch,
        package.kernel_entries(state.programs.values()),
        tuple(library.data for library in state.compiled.libraries),
        state.fallbacks,
        state.live_bytes,
        run=state.device.kind == "cpu",
    )
    regions = tuple(
        region for region in state.patch.regions if region.name not in rehearsal.refused
    )
    return replace(
        state,
        patch=Patch(regions),
        regions={name: key for name, key in state.regions.items() if name not in rehearsal.refused},
        refusals=state.refusals + tuple(rehearsal.refused.values()),
        figures={**state.figures, "Rehearsal of the patched step": rehearsal.figure},
    )


STAGES: tuple[Stage[RequestState], ...] = numbered(
    Stage("partition", _partition, lambda s: stage_texts.partition(s.partition)),
    Stage(
        "lower",
        _lower,
        lambda s: stage_texts.lowered(s.regions, s.lowered, s.refusals),
        beside=lambda s: stage_texts.lowerings(s.lowered),
    ),
    Stage(
        "build", _build, lambda s: stage_texts.built(s.compiled, s.programs) if s.compiled else ""
    ),
    Stage("cut", _cut, lambda s: stage_texts.cut(s.figures)),
    Stage("tune", _tune, lambda s: stage_texts.tuned(s.tuning)),
    Stage(
        "verify", _verify, lambda s: stage_texts.verified(s.verification) if s.verification else ""
    ),
    Stage(
        "measure",
        _measure,
        lambda s: stage_texts.measured(s.verification) if s.verification else "",
    ),
    Stage("fallback", _fallback, lambda s: stage_texts.fallbacks(s.programs)),
    Stage("limit", _limit, lambda s: stage_texts.limited(s.figures, s.refusals)),
    Stage("patch", _patch, lambda s: stage_texts.patch(s.patch) if s.patch else ""),
    Stage("rehearse", _rehearse, lambda s: stage_texts.rehearsed(s.figures, s.refusals)),
)
"""From a request to a patch, in order; publishing follows."""
VERIFICATION_STAGES = frozenset({"tune", "verify", "measure", "rehearse"})


# ---- the artifact ------------------------------------------------------------------------------
def _packed(
    state: RequestState, key: str, seconds: Mapping[str, float]
) -> tuple[Manifest, tuple[bytes, ...], dict[str, bytes]]:
    """Manifest, libraries and reports."""
    assert state.compiled is not None
    assert state.patch is not None
    libraries = tuple(library.data for library in state.compiled.libraries)
    manifest = Manifest(
        key=key,
        digest=state.request.digest,
        target=state.device.target,
        tf=state.request.tf,
        compiler=_compiler(state.device),
        libraries=package.library_entries(libraries),
        kernels=package.kernel_entries(state.programs.values()),
        patch=state.patch,
        expect=_expectation(state),
        refusals=dict(Counter(refusal.reason.value for refusal in state.refusals)),
        measured=state.testbed is not None,
        functions=state.fallbacks,
        undecided=_undecided(state),
    )
    outcome = Outcome(
        state.request.digest,
        state.device,
        state.partition,
        state.regions,
        state.functions,
        state.compiled,
        state.programs,
        state.verification,
        state.refusals,
        manifest.expect,
        seconds,
        state.figures,
    )
    files = {**report_files(outcome), **file_of(state.tuning)}
    return manifest, libraries, files


def _undecided(state: RequestState) -> tuple[str, ...]:
    """Regions of the patch that made-up data could not decide about."""
    assert state.patch is not None
    keys = state.verification.undecided if state.verification is not None else frozenset()
    named = (region.name for region in state.patch.regions)
    return tuple(name for name in named if state.regions.get(name) in keys)


def _expectation(state: RequestState) -> Expectation:
    """Sums over the graph's stitched regions, operations and bytes before, kernels after; and
    bytes of the whole step."""
    from stitchcore.tensorflow.coverage import coverage, region_bytes

    assert state.compiled is not None
    regions, graph = state.compiled.regions, state.partition.graph
    stitched = {name: key for name, key in state.regions.items() if key in state.programs}
    before = total(regions[key].plan.unfused for key in stitched.values())
    after = total(regions[key].plan.planned for key in stitched.values())
    sizes = [
        region_bytes(graph, region.members)
        for region in state.partition.regions
        if region.name in stitched
    ]
    covered = coverage(
        state.partition,
        {name: stitched_share(regions[key], state.device) for name, key in stitched.items()},
        {name: regions[key].plan.planned.bytes for name, key in stitched.items()},
    )
    return Expectation(
        kernels_before=sum(map(len, sizes)),
        kernels_after=sum(len(state.programs[key].launches) for key in stitched.values()),
        bytes_before=sum(map(sum, sizes)),
        bytes_after=after.bytes,
        bytes_saveable=covered.saveable,
        bytes_saved=covered.saved,
        bytes_stitched=covered.stitched,
        bytes_intensive=covered.intensive,
        live_bytes=state.live_bytes,
        seconds_before=before.seconds,
        seconds_after=after.seconds,
    )
