"""What each stage of a request made, as text to read: the files of a job's dump.

Texts that can be edited are those of the regions' and kernels' own stages, in folders beside these
(stages.py); these are for reading only.
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
from stitchcore.verify.regions import Proof


def partition(found: Any) -> str:
    """Every region with its members, then every other node with its reason."""
    graph = found.graph
    lines = [f"{len(graph.nodes)} nodes, {len(found.regions)} regions"]
    for region in found.regions:
        first = region.members[0]
        frame, device = graph.frames[first], graph.nodes[first].device
        lines.append(f"region {region.name}: {len(region.members)} nodes, device {device or 'any'}")
        lines += [f"  frame {frame}"] if frame else []
        lines += [f"  {predicate}" for predicate in branches(graph, first)]
        for word, nodes in (("member", region.members), ("copied in", region.clones)):
            lines += [f"  {word} {_node(graph, node)}" for node in nodes]
        for word, tensors in (("input", region.tensors), ("result", region.results)):
            lines += [f"  {word} {_tensor(graph, tensor)}" for tensor in tensors]
        for handle in region.variables:
            does = "writes" if handle in region.updates else "reads"
            lines.append(f"  {does} variable {graph.nodes[handle.node].name}")
    return _text([*lines, *_refusals(found.refusals)])


def branches(graph: Any, node: int) -> list[str]:
    """The branches that must have been taken for a node to run."""
    return sorted(
        f"runs only where {graph.nodes[predicate].name} is {'true' if branch else 'false'}"
        for predicate, _, branch, _ in graph.deadness[node]
    )


def _node(graph: Any, node: int) -> str:
    return f"{graph.nodes[node].name} ({graph.nodes[node].op})"


def _tensor(graph: Any, tensor: Any) -> str:
    shape = graph.shape(tensor)
    sizes = ",".join(str(size) if size >= 0 else "?" for size in shape) if shape is not None else ""
    name = f"{graph.nodes[tensor.node].name}:{tensor.port}"
    return f"{name} {graph.dtype(tensor)}[{sizes if shape is not None else 'unknown rank'}]"


def lowered(regions: Mapping[str, str], low: Mapping[str, Any], refusals: Sequence[Refusal]) -> str:
    """Which structure each region has, and the files of `lowerings`."""
    lines = [f"{len(regions)} regions, {len(low)} structures"]
    lines += [f"region {name}: structure {key[:12]}" for name, key in regions.items()]
    for key, one in low.items():
        symbols = ", ".join(one.subgraph.symbols) or "none"
        lines.append(f"structure {key[:12]}: symbols {symbols}, {len(one.texts)} points")
        for number, (point, _) in enumerate(one.texts):
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


def built(made: CompiledRegions, programs: Mapping[str, RegionProgram]) -> str:
    """Kernels of every structure and their launches' inputs."""
    lines = [f"{len(made.regions)} structures, {len(made.kernels)} kernels"]
    for key, region in made.regions.items():
        plan = region.plan
        lines.append(
            f"structure {key[:12]}: {len(plan.patterns)} kernels, {plan.unfused.bytes:,} bytes one "
            f"by one, {plan.planned.bytes:,} as planned, {plan.planned.seconds * 1e6:.1f} µs"
        )
        for launch in programs[key].launches if key in programs else ():
            lines.append(f"  launch {launch.kernel.name}: {launch.work} ns of work on one core")
            buffers = zip(launch.inputs, launch.kernel.with_role(Role.INPUT), strict=True)
            lines += [f"    input {place} {buffer.dims}" for place, buffer in buffers]
    return _text([*lines, *_refusals(made.refusals)])


def tuned(found: Tuning | None) -> str:
    """What measurement overruled."""
    if found is None:
        return "nothing was tuned\n"
    lines = [found.figure()]
    lines += [
        f"{one.kernel}: {one.parts} kernels, {one.ratio[1]:.2f} [{one.ratio[0]:.2f},"
        f" {one.ratio[2]:.2f}] of its time"
        for one in found.overruled
    ]
    return _text([*lines, *(f"quicker, but not right: {wrong}" for wrong in found.wrong)])


def verified(proof: Proof) -> str:
    """Every judgement."""
    lines = []
    for key, one in proof.regions.items():
        lines.append(f"structure {key[:12]} on {one.check.data} data")
        lines += [f"  output {n}: {found}" for n, found in enumerate(one.check.judgements)]
    return _text([*lines, *_refusals(proof.refused.values())])


def measured(proof: Proof) -> str:
    """Every timing."""
    lines = [f"{name}: {told}" for name, told in proof.figures().items()]
    for key, one in proof.regions.items():
        timing = one.timing
        lines.append(f"structure {key[:12]}: {timing.note}" if timing.note else f"structure {key}")
        lines += [f"  {name} {value * 1e6:.1f} µs" for name, value in timing.seconds.items()]
        for rival, ratio in (("the framework", timing.ratio), ("XLA", timing.xla_ratio)):
            lines += [f"  stitched / {rival} {ratio}"] if ratio is not None else []
    return _text([*lines, *_refusals(proof.refused.values())])


def fallbacks(programs: Mapping[str, RegionProgram]) -> str:
    """The function of each launch: what it takes, and which outputs it gives."""
    lines = []
    for key, made in programs.items():
        for number, launch in enumerate(made.launches):
            if launch.fallback is not None:
                one = launch.fallback
                lines.append(f"{key[:12]} launch {number}: {one.function}")
                lines.append(f"  of {', '.join(map(str, one.arguments))} gives {one.results}")
    return _text(lines)


def limited(figures: Mapping[str, str], refusals: Sequence[Refusal]) -> str:
    """Live bytes, and what was left as it was for them."""
    lines = [f"{name}: {told}" for name, told in figures.items()]
    return _text([*lines, *_refusals(r for r in refusals if r.reason is Reason.MEMORY)])


def rehearsed(figures: Mapping[str, str], refusals: Sequence[Refusal]) -> str:
    """How far the patched step was tried, and which regions were taken back."""
    lines = [f"{name}: {told}" for name, told in figures.items() if name.startswith("Rehearsal")]
    return _text([*lines, *_refusals(r for r in refusals if r.reason is Reason.STRUCTURE)])


def patch(made: Patch) -> str:
    """The patch as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(made), indent=1).decode() + "\n"


def _refusals(refusals: Any) -> Iterator[str]:
    found = list(refusals)
    for reason, count in Counter(refusal.reason.value for refusal in found).most_common():
        yield f"left as it was: {count} x {reason}"
    yield from (f"left {refusal}" for refusal in found)


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
