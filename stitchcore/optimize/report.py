"""The report of a request: every node of the job's graph with its kernel or its reason.

HLO's metadata names the function's node that an instruction came from (`region/n7`), the subgraph
knows which node of the graph that was. A node whose instructions went into several kernels is told
with the one that holds most of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stitchcore.artifact.manifest import Expectation
from stitchcore.codegen import c as emit_c
from stitchcore.codegen import cuda as emit_cuda
from stitchcore.compiler.regions import CompiledRegions, PlannedRegion
from stitchcore.device.records import Device
from stitchcore.errors import Refusal
from stitchcore.fusion.cost import cost
from stitchcore.fusion.text import plan_text
from stitchcore.hlo.text.printer import print_module
from stitchcore.launch.region_program import RegionProgram
from stitchcore.loop_ir import scheme_counts
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.optimize.stage_texts import branches
from stitchcore.report import planners
from stitchcore.report.markup import seconds_text
from stitchcore.report.render import html
from stitchcore.report.schema import (
    MODULES,
    NO_KERNEL,
    Report,
    ReportKernel,
    ReportModule,
    ReportNode,
    ReportRegion,
    count_reasons,
    encode,
    within_limit,
)
from stitchcore.verify.regions import Verification

_CLONE = re.compile(r"(?:^|/)n(\d+)(?=$|/|:)")


@dataclass(frozen=True)
class Outcome:
    """What the pipeline made of a request. `regions` maps a region's name to its structure's key;
    `functions` to what is lowered of it; `programs` are the structures that are stitched."""

    digest: str
    device: Device
    partition: Any
    regions: Mapping[str, str]
    functions: Mapping[str, Any]
    compiled: CompiledRegions
    programs: Mapping[str, RegionProgram]
    verification: Verification | None
    refusals: Sequence[Refusal]
    expect: Expectation
    seconds: Mapping[str, float]
    figures: Mapping[str, str]


def report_files(outcome: Outcome) -> dict[str, bytes]:
    """The artifact's files that are for people, by name."""
    contents = report(outcome)
    return {
        "report.json": encode(contents),
        "report.html": html(contents).encode(),
        MODULES: msgspec.json.encode(modules(outcome), order="sorted"),
    }


def report(outcome: Outcome) -> Report:
    """The report of `outcome`."""
    kernels: list[ReportKernel] = []
    kernel_of: dict[int, int] = {}
    first: dict[str, int] = {}
    reasons = _reasons(outcome)
    for region in outcome.partition.regions:
        key = outcome.regions.get(region.name, "")
        if key in outcome.programs:
            origins = outcome.functions[region.name].origins
            first[region.name] = len(kernels)
            launch_of = _holders(outcome.compiled.regions[key], origins)
            kernel_of |= {node: len(kernels) + launch for node, launch in launch_of.items()}
            kernels += _kernels(outcome, key)
            _spread(outcome, region, kernel_of)
    nodes = _nodes(outcome, kernel_of, reasons)
    expect = outcome.expect
    libraries = outcome.compiled.libraries
    plans = [region.plan for region in outcome.compiled.regions.values()]
    return Report(
        title=f"graph {outcome.digest[:12]}",
        target=outcome.device.target,
        nodes=nodes,
        kernels=tuple(kernels),
        refusals=count_reasons(nodes),
        kernels_before=expect.kernels_before,
        kernels_after=expect.kernels_after,
        bytes_before=expect.bytes_before,
        bytes_after=expect.bytes_after,
        bytes_saveable=expect.bytes_saveable,
        bytes_saved=expect.bytes_saved,
        seconds_before=expect.seconds_before,
        seconds_after=expect.seconds_after,
        seconds={
            **outcome.seconds,
            **{f"build.{k}": v for k, v in outcome.compiled.seconds.items()},
        },
        figures={
            **(outcome.verification.figures() if outcome.verification is not None else {}),
            **_won_back(outcome),
            **outcome.figures,
        },
        regions=_regions(outcome, first),
        scalar_loops=tuple(
            f"{loop.loop}: {loop.reason}" for library in libraries for loop in library.scalar_loops
        ),
        planners=planners.side_by_side(plans),
        bound=planners.bound_text(proved) if (proved := planners.bound(plans)) else "",
        sources=within_limit(_texts(outcome)),
    )


def _won_back(outcome: Outcome) -> dict[str, str]:
    """After how many steps the stages' seconds are won back, by what the timed regions save."""
    verified = outcome.verification.regions if outcome.verification is not None else {}
    timings = [
        verified[key].timing.seconds
        for key in outcome.regions.values()
        if key in outcome.programs and key in verified and verified[key].timing.ratio is not None
    ]
    if not timings:
        return {}
    spent = sum(outcome.seconds.values())
    saved = sum(seconds["framework"] - seconds["stitched"] for seconds in timings)
    told = f"never: {len(timings)} timed regions save nothing"
    if saved > 0:
        each = f"{seconds_text(saved)} that {len(timings)} timed regions save in each"
        told = f"after {math.ceil(spent / saved):,} steps, by the {each}"
    return {"Compilation won back": f"{seconds_text(spent)}, {told}"}


def _holders(planned: PlannedRegion, origins: Sequence[int]) -> dict[int, int]:
    """The launch that holds most instructions of each node."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    provenance = planned.plan.module.provenance
    for number, pattern in enumerate(planned.plan.patterns):
        for instruction in pattern.instructions:
            for node in _sources(provenance.get(instruction, ()), origins):
                counts[node][number] += 1
    return {node: counted.most_common(1)[0][0] for node, counted in counts.items()}


def _sources(names: Iterable[str], origins: Sequence[int]) -> set[int]:
    clones = {int(match[1]) for name in names for match in _CLONE.finditer(name)}
    return {origins[number] for number in clones if number < len(origins)}


def _spread(outcome: Outcome, region: Any, kernel_of: dict[int, int]) -> None:
    """Members without instructions of their own (variable writes, what was folded) belong to the
    kernel of the value they take, or of the one that takes theirs."""
    data, members = outcome.partition.graph.data, set(region.members)
    for node in region.members:
        for edge in data[node]:
            if node not in kernel_of and edge.node in members and edge.node in kernel_of:
                kernel_of[node] = kernel_of[edge.node]
    for node in reversed(region.members):
        for edge in data[node]:
            if edge.node in members and node in kernel_of:
                kernel_of.setdefault(edge.node, kernel_of[node])


def _texts(outcome: Outcome) -> dict[str, str]:
    """C or CUDA of each distinct kernel by itself."""
    render = emit_c.render if outcome.device.kind == "cpu" else emit_cuda.render
    launches = (launch for program in outcome.programs.values() for launch in program.launches)
    kernels = {launch.kernel.name: launch.kernel for launch in launches}
    return {name: render([kernel]) for name, kernel in kernels.items()}


def _kernels(outcome: Outcome, key: str) -> list[ReportKernel]:
    planned, program = outcome.compiled.regions[key], outcome.programs[key]
    after = [cost(pattern, outcome.device).bytes for pattern in planned.plan.patterns]
    return [
        ReportKernel(
            launch.kernel.name,
            len(pattern.instructions),
            launch.bytes_saved,
            launch.work,
            len(launch.kernel.phases),
            print_kernel(launch.kernel),
            bytes_before=moved + launch.bytes_saved,
            bytes_after=moved,
            schemes=scheme_counts.count(launch.kernel),
        )
        for launch, pattern, moved in zip(
            program.launches, planned.plan.patterns, after, strict=True
        )
    ]


def _reasons(outcome: Outcome) -> dict[int, Refusal]:
    """Refusals by node; one that names a region is of all its members."""
    by_subject: dict[str, Refusal] = {}
    for refusal in outcome.refusals:
        by_subject.setdefault(refusal.subject, refusal)
    graph = outcome.partition.graph
    refusal_of = {
        number: by_subject[node.name]
        for number, node in enumerate(graph.nodes)
        if node.name in by_subject
    }
    for region in outcome.partition.regions:
        key = outcome.regions.get(region.name, "")
        if key in outcome.programs:
            continue
        why = by_subject.get(region.name)
        if why is not None:
            refusal_of |= dict.fromkeys(region.members, why)
    return refusal_of


def _nodes(
    outcome: Outcome, kernel_of: Mapping[int, int], reasons: Mapping[int, Refusal]
) -> tuple[ReportNode, ...]:
    from stitchcore.tensorflow.coverage import node_bytes
    from stitchcore.tensorflow.levels import assign

    partition = outcome.partition
    graph = partition.graph
    levels = assign(graph, partition.classes, partition.variables)
    region_of = {node: n for n, region in enumerate(partition.regions) for node in region.members}
    rows = []
    for number, node in enumerate(graph.nodes):
        kernel = kernel_of.get(number, NO_KERNEL)
        why = reasons.get(number) if kernel == NO_KERNEL else None
        reason, detail = (why.reason.value, why.detail) if why is not None else ("", "")
        inputs = tuple(dict.fromkeys(edge.node for edge in graph.data[number]))
        written = list(node.experimental_debug_info.original_node_names)[-1:]
        row = ReportNode(
            node.name,
            node.op,
            kernel,
            reason,
            detail,
            inputs,
            written[0] if written and written[0] != node.name else "",
            bytes=node_bytes(graph, number) if why is not None else 0,
        )
        if number in region_of:
            row = msgspec.structs.replace(
                row,
                region=region_of[number],
                level=levels.level[number],
                device=node.device,
                frame=graph.frames[number],
                branches=tuple(branches(graph, number)),
                small=partition.classes.small[number],
            )
        rows.append(row)
    return tuple(rows)


def modules(outcome: Outcome) -> dict[str, ReportModule]:
    """Modules and plans of stitched regions that became several kernels, by region key."""
    planned_regions = {key: outcome.compiled.regions[key] for key in outcome.programs}
    return {
        key: ReportModule(
            print_module(planned.module), plan_text(planned.plan), planned.plan.planner
        )
        for key, planned in planned_regions.items()
        if len(planned.plan.patterns) > 1
    }


def _regions(outcome: Outcome, first: Mapping[str, int]) -> tuple[ReportRegion, ...]:
    verifications = outcome.verification.regions if outcome.verification is not None else {}
    rows = []
    for region in outcome.partition.regions:
        key = outcome.regions.get(region.name, "")
        planned = outcome.compiled.regions.get(key)
        rows.append(
            ReportRegion(
                region.name,
                key,
                len(region.members),
                key in outcome.programs,
                len(planned.plan.patterns) if planned is not None else 0,
                planned.plan.unfused.bytes if planned is not None else 0,
                planned.plan.planned.bytes if planned is not None else 0,
                verifications[key].summary() if key in verifications else {},
                first.get(region.name, NO_KERNEL),
                tuple(outcome.functions[region.name].origins) if region.name in first else (),
                planned.plan.unfused.seconds if planned is not None else 0.0,
                planned.plan.planned.seconds if planned is not None else 0.0,
                region.cut_from,
            )
        )
    return tuple(rows)
