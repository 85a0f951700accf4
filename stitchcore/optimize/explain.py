"""Why operations of a job are in no kernel, or not in one: from an artifact's report and modules.

Two operations can be in one kernel only where they are in one region. Regions are told by what
their nodes share (level, device, frame, branches), kernels of one region by planning rules, which
are asked again on the region's module as it was planned.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Mapping, Sequence

from stitchcore.device.records import Device, device_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.cost import cost
from stitchcore.fusion.explain import SOURCE, Explanation, Place, apart
from stitchcore.fusion.pattern import Feasibility, Pattern
from stitchcore.fusion.text import parse_plan
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.report.schema import NO_KERNEL, NO_REGION, Report, ReportModule, ReportNode
from stitchcore.schedule.pipeline import schedule

NEAR = 5
"""Names that are offered for one that is unknown."""


def find(report: Report, name: str) -> list[int]:
    """Positions of the nodes called `name`, by the graph or by the script; else of those whose name
    ends in it; else of those that have its parts in order."""
    parts = [part for part in name.split("/") if part]
    matches: tuple[list[int], list[int], list[int]] = ([], [], [])
    for position, node in enumerate(report.nodes):
        names = [candidate for candidate in (node.name, node.written) if candidate]
        if name in names:
            matches[0].append(position)
        elif any(candidate.endswith("/" + name) for candidate in names):
            matches[1].append(position)
        elif any(_in_order(parts, candidate.split("/")) for candidate in names):
            matches[2].append(position)
    return next((positions for positions in matches if positions), [])


def _in_order(parts: Sequence[str], whole: Sequence[str]) -> bool:
    rest = iter(whole)
    return bool(parts) and all(part in rest for part in parts)


def near(report: Report, name: str) -> list[str]:
    """Names that `name` may have meant: of operations, or what they end in."""
    full = {node.written or node.name for node in report.nodes}
    depth = name.count("/") + 1
    tails = {"/".join(full_name.split("/")[-depth:]) for full_name in full}
    candidates = sorted(full | tails)
    lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), list(lower), NEAR, 0.6)
    return [lower[candidate] for candidate in close]


def place(report: Report, position: int) -> Place:
    """Where a node ended."""
    node = report.nodes[position]
    name = node.written or node.name
    if node.kernel != NO_KERNEL:
        return Place(name, node.op, (node.kernel,))
    return Place(name, node.op, (), node.reason or SOURCE, node.detail)


def explain(
    report: Report, modules: Mapping[str, ReportModule], first: int, second: int
) -> Explanation:
    """Why two nodes are, or are not, in one kernel."""
    places = place(report, first), place(report, second)
    first_node, second_node = report.nodes[first], report.nodes[second]
    if first_node.kernel == second_node.kernel != NO_KERNEL:
        return Explanation(*places, True, "", "one kernel computes both")
    for ended in places:
        if not ended.kernels:
            detail = f"{ended.name} is in no kernel" + (f": {ended.detail}" if ended.detail else "")
            return Explanation(*places, False, ended.reason, detail)
    if first_node.region == second_node.region != NO_REGION:
        reason, detail, path = _kernels(report, modules, first_node, second_node)
        return Explanation(*places, False, reason, detail, path)
    return _regions(report, places, first, second)


def _kernels(
    report: Report, modules: Mapping[str, ReportModule], first: ReportNode, second: ReportNode
) -> tuple[str, str, tuple[str, ...]]:
    """Why two kernels of one region are not one."""
    region = report.regions[first.region]
    stored = modules.get(region.key)
    device = device_of(report.target)
    if stored is None or device is None:
        return "", "the artifact does not hold the plan of their region", ()
    module = parse(stored.module)
    plan = parse_plan(stored.plan, module, device, cost, "plan", stored.planner).plan
    numbers = first.kernel - region.first_kernel, second.kernel - region.first_kernel
    reason, detail, path = apart(plan, numbers, device, cost, _schedulable(module))
    return reason, f"{detail} (kernels of one region, {region.name})", path


def _schedulable(module: Module) -> Feasibility:
    def ask(pattern: Pattern, device: Device) -> Refusal | None:
        try:
            schedule(pattern, module, device, "explain")
        except Refused as refused:
            return refused.refusal
        return None

    return ask


def _regions(report: Report, places: tuple[Place, Place], first: int, second: int) -> Explanation:
    """Why two nodes are in different regions."""
    first_node, second_node = report.nodes[first], report.nodes[second]
    regions = report.regions[first_node.region], report.regions[second_node.region]
    if regions[0].cut_from and regions[0].cut_from == regions[1].cut_from:
        detail = f"{regions[0].cut_from} is launched in parts: at once it would hold too much"
        return Explanation(*places, False, Reason.MEMORY.value, detail)
    differences = tuple(_differences(first_node, second_node))
    for start, end in ((first, second), (second, first)):
        path = between(report, start, end)
        if path:
            ends = [report.nodes[position] for position in (start, end)]
            waits = [node.written or node.name for node in ends]
            stop = next((node for node in path if node.region == NO_REGION), path[0])
            why = f" ({stop.reason})" if stop.reason else ""
            detail = (
                f"{stop.written or stop.name} ({stop.op}) stands between and cannot be in a "
                f"kernel{why}: it waits for the region of {waits[0]}, and that of {waits[1]} for it"
            )
            names = tuple(node.written or node.name for node in path)
            return Explanation(*places, False, Reason.CYCLE.value, detail, names, differences)
    if differences:
        return Explanation(
            *places, False, "", "nodes of one region share what follows", (), differences
        )
    detail = (
        "nothing joins their regions: no tensor goes from one to the other, and they read no large "
        "tensor in common"
    )
    return Explanation(*places, False, Reason.NOT_PROFITABLE.value, detail)


def _differences(first: ReportNode, second: ReportNode) -> list[str]:
    differences = []
    if first.device != second.device:
        differences.append(f"device {first.device or 'any'} and {second.device or 'any'}")
    if first.frame != second.frame:
        differences.append(f"while loop {first.frame or 'none'} and {second.frame or 'none'}")
    if first.branches != second.branches:
        branches = [" and ".join(node.branches) or "runs always" for node in (first, second)]
        differences.append(f"branches: the first {branches[0]}, the second {branches[1]}")
    if first.level != second.level:
        differences.append(
            f"level {first.level} and {second.level}: operations outside regions run between levels"
        )
    if first.small != second.small:
        differences.append("one is of scalars and small vectors, which have regions of their own")
    return differences


def between(report: Report, start: int, end: int) -> list[ReportNode]:
    """Nodes outside both regions on a shortest path from the region of node `start` to that of node
    `end`; empty without one."""
    nodes = report.nodes
    regions = nodes[start].region, nodes[end].region
    readers: dict[int, list[int]] = {}
    for position, node in enumerate(nodes):
        for source in node.inputs:
            readers.setdefault(source, []).append(position)
    came: dict[int, int | None] = {}
    queue = deque(p for p, node in enumerate(nodes) if node.region == regions[0])
    inside = set(queue)
    while queue:
        here = queue.popleft()
        for reader in readers.get(here, ()):
            if nodes[reader].region == regions[1] and here not in inside:
                path: list[int] = [here]
                while (before := came[path[-1]]) is not None:
                    path.append(before)
                return [nodes[position] for position in path[::-1]]
            if reader not in came and nodes[reader].region not in regions:
                came[reader] = None if here in inside else here
                queue.append(reader)
    return []
