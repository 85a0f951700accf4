"""What each stage of a request made, as text to read: the files of a job's dump.

Texts that can be edited are those of the regions' and kernels' own stages, in folders beside these
(compiler/stages.py); these are for reading only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stitchcore.artifact.manifest import Patch
from stitchcore.autotune.regions import Tuning
from stitchcore.compiler.regions import CompiledRegions
from stitchcore.errors import Reason, Refusal
from stitchcore.launch.region_program import RegionProgram
from stitchcore.loop_ir.nodes import Role
from stitchcore.verify.regions import Verification

CUT = "Cut to hold less memory"
"""The figure that tells which regions were cut."""


def partition(partitioned: Any) -> str:
    """Every region with its members, then every other node with its reason."""
    graph = partitioned.graph
    lines = [f"{len(graph.nodes)} nodes, {len(partitioned.regions)} regions"]
    for region in partitioned.regions:
        first = region.members[0]
        frame, device = graph.frames[first], graph.nodes[first].device
        lines.append(f"region {region.name}: {len(region.members)} nodes, device {device or 'any'}")
        lines += [f"  frame {frame}"] if frame else []
        lines += [f"  {predicate}" for predicate in branches(graph, first)]
        for word, nodes in (("member", region.members), ("copied in", region.clones)):
            lines += [
                f"  {word} {graph.nodes[node].name} ({graph.nodes[node].op})" for node in nodes
            ]
        for word, tensors in (("input", region.tensors), ("result", region.results)):
            lines += [f"  {word} {_tensor(graph, tensor)}" for tensor in tensors]
        for handle in region.variables:
            does = "writes" if handle in region.updates else "reads"
            lines.append(f"  {does} variable {graph.nodes[handle.node].name}")
    return _text([*lines, *_refusals(partitioned.refusals)])


def branches(graph: Any, node: int) -> list[str]:
    """The branches that must have been taken for a node to run."""
    return sorted(
        f"runs only where {graph.nodes[predicate].name} is {'true' if branch else 'false'}"
        for predicate, _, branch, _ in graph.deadness[node]
    )


def _tensor(graph: Any, tensor: Any) -> str:
    shape = graph.shape(tensor)
    sizes = ",".join(str(size) if size >= 0 else "?" for size in shape) if shape is not None else ""
    name = f"{graph.nodes[tensor.node].name}:{tensor.port}"
    return f"{name} {graph.dtype(tensor)}[{sizes if shape is not None else 'unknown rank'}]"


def lowered(regions: Mapping[str, str], low: Mapping[str, Any], refusals: Sequence[Refusal]) -> str:
    """Which structure each region has, and the files of `lowerings`."""
    lines = [f"{len(regions)} regions, {len(low)} structures"]
    lines += [f"region {name}: structure {key[:12]}" for name, key in regions.items()]
    for key, lowering in low.items():
        symbols = ", ".join(lowering.subgraph.symbols) or "none"
        lines.append(f"structure {key[:12]}: symbols {symbols}, {len(lowering.texts)} points")
        for number, (point, _) in enumerate(lowering.texts):
            where = ", ".join(f"{name}={size}" for name, size in point.items())
            lines.append(f"  {key[:12]}/lowered_{number}.hlo {where}".rstrip())
    return _text([*lines, *_refusals(refusals)])


def lowerings(low: Mapping[str, Any]) -> dict[str, str]:
    """Every lowering as HLO, one a point, by its file in the structure's folder."""
    return {
        f"{key[:12]}/lowered_{number}.hlo": text
        for key, lowering in low.items()
        for number, (_, text) in enumerate(lowering.texts)
    }


def built(compiled: CompiledRegions, programs: Mapping[str, RegionProgram]) -> str:
    """Kernels of every structure and their launches' inputs."""
    lines = [f"{len(compiled.regions)} structures, {len(compiled.kernels)} kernels"]
    for key, region in compiled.regions.items():
        plan = region.plan
        lines.append(
            f"structure {key[:12]}: {len(plan.patterns)} kernels, {plan.unfused.bytes:,} bytes one "
            f"by one, {plan.planned.bytes:,} as planned, {plan.planned.seconds * 1e6:.1f} µs"
        )
        for launch in programs[key].launches if key in programs else ():
            lines.append(f"  launch {launch.kernel.name}: {launch.work} ns of work on one core")
            buffers = zip(launch.inputs, launch.kernel.with_role(Role.INPUT), strict=True)
            lines += [f"    input {place} {buffer.dims}" for place, buffer in buffers]
    return _text([*lines, *_refusals(compiled.refusals)])


def tuned(tuning: Tuning | None) -> str:
    """What measurement overruled."""
    if tuning is None:
        return "nothing was tuned\n"
    lines = [tuning.figure()]
    lines += [
        f"{choice.kernel}: {choice.parts} kernels, {choice.ratio[1]:.2f} [{choice.ratio[0]:.2f},"
        f" {choice.ratio[2]:.2f}] of its time"
        for choice in tuning.overruled
    ]
    lines += [
        f"{choice.kernel}: {choice.schedule}, {choice.ratio[1]:.2f} [{choice.ratio[0]:.2f},"
        f" {choice.ratio[2]:.2f}] of its time"
        for choice in tuning.rescheduled
    ]
    return _text([*lines, *(f"quicker, but not right: {wrong}" for wrong in tuning.wrong)])


def verified(verification: Verification) -> str:
    """Every judgement."""
    lines = []
    for key, region in verification.regions.items():
        lines.append(f"structure {key[:12]} on {region.check.data} data")
        lines += [
            f"  output {n}: {judgement}" for n, judgement in enumerate(region.check.judgements)
        ]
    return _text([*lines, *_refusals(verification.refused.values())])


def measured(verification: Verification) -> str:
    """Every timing."""
    lines = [f"{name}: {figure}" for name, figure in verification.figures().items()]
    for key, region in verification.regions.items():
        timing = region.timing
        lines.append(f"structure {key[:12]}: {timing.note}" if timing.note else f"structure {key}")
        lines += [f"  {name} {value * 1e6:.1f} µs" for name, value in timing.seconds.items()]
        lines += [f"  stitched / the framework {timing.ratio}"] if timing.ratio is not None else []
    return _text([*lines, *_refusals(verification.refused.values())])


def fallbacks(programs: Mapping[str, RegionProgram]) -> str:
    """The function of each launch: what it takes, and which outputs it gives."""
    lines = []
    for key, program in programs.items():
        for number, launch in enumerate(program.launches):
            if launch.fallback is not None:
                fallback = launch.fallback
                lines.append(f"{key[:12]} launch {number}: {fallback.function}")
                lines.append(
                    f"  of {', '.join(map(str, fallback.arguments))} gives {fallback.results}"
                )
    return _text(lines)


def cut(figures: Mapping[str, str]) -> str:
    """Regions that were cut, in how many, and the step's live bytes."""
    return f"{figures.get(CUT, 'none')}\n"


def limited(figures: Mapping[str, str], refusals: Sequence[Refusal]) -> str:
    """Live bytes, and what was left as it was for them."""
    lines = [f"{name}: {figure}" for name, figure in figures.items()]
    return _text([*lines, *_refusals(r for r in refusals if r.reason is Reason.MEMORY)])


def rehearsed(figures: Mapping[str, str], refusals: Sequence[Refusal]) -> str:
    """How far the patched step was tried, and which regions were taken back."""
    lines = [
        f"{name}: {figure}" for name, figure in figures.items() if name.startswith("Rehearsal")
    ]
    return _text([*lines, *_refusals(r for r in refusals if r.reason is Reason.STRUCTURE)])


def patch(patched: Patch) -> str:
    """The patch as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(patched), indent=1).decode() + "\n"


def _refusals(refusals: Any) -> Iterator[str]:
    listed = list(refusals)
    for reason, count in Counter(refusal.reason.value for refusal in listed).most_common():
        yield f"left as it was: {count} x {reason}"
    yield from (f"left {refusal}" for refusal in listed)


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
