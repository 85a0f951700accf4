"""The planners on every workload module: `python -m bench.planners` writes JSON and a table.

Per module and planner: kernels (those of loop bodies too), seconds estimated and saved, seconds of
planning with the scheduler as judge. Per module: how far the beam of `explore` is from what `exact`
proves (docs/decisions.md 28), and XLA:CPU's memory-intensive kernels for the same module. Every
plan is printed and read back, which checks that it is complete, disjoint and runnable. XLA's counts
are taken again only for modules that the results do not hold yet, or with --xla.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from bench import record, xla
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Plan
from stitchcore.fusion.planners import STITCHING
from stitchcore.fusion.text import bodies, parse_plan, plan_text
from stitchcore.hlo.text.parser import parse
from stitchcore.report import planners as told

TABLE = record.RESULTS / "planners.md"
FIGURES = record.raw(TABLE.with_suffix(".json"))
WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"
TARGETS = ("cpu-x86-64-v3", "sm_70")
PLANNING = PLANNED[: [stage.name for stage in PLANNED].index("plan") + 1]
ELSEWHERE = frozenset(
    "contraction dot convolution sort custom-call fft cholesky triangular-solve "
    "while call conditional".split()
)
"""What XLA launches or enters that is no memory-intensive kernel."""

WALLS = frozenset({Reason.LIBRARY_CALL, Reason.CONTROL_FLOW})
"""Reasons for which an instruction is no memory-intensive kernel of ours or theirs."""

GAP = 0.05
"""The bar: how far the beam may be from the bound on saved seconds."""


def planned(text: str, target: str, planner: str) -> tuple[Plan, float]:
    """The plan of a module, checked, and the seconds of planning."""
    state = ModuleState(parse(text), DEVICES[target], BuildOptions(planner))
    seconds: dict[str, float] = {}
    plan = run(PLANNING, state, seconds=seconds).plan
    assert plan is not None
    parse_plan(plan_text(plan), plan.module, DEVICES[target], cost, "plan", planner)
    return plan, seconds["plan"]


def measured(text: str, target: str) -> dict[str, Any]:
    """All planners on one module."""
    found: dict[str, Any] = {}
    for name in STITCHING:
        plan, took = planned(text, target, name)
        everything = [plan, *bodies(plan).values()]
        before = sum(one.unfused.seconds for one in everything)
        after = sum(one.planned.seconds for one in everything)
        left = sum(1 for one in everything for r in one.refusals if r.reason not in WALLS)
        found[name] = {
            "left_out": left,
            "kernels": sum(len(one.patterns) for one in everything),
            "estimated_seconds": after,
            "saved_seconds": before - after,
            "planning_seconds": took,
        }
        bound = told.bound([plan])
        if name == "exact" and bound is not None:
            found["bound"] = {
                "pool": bound.pool,
                "saved_seconds": bound.saved,
                "limit_seconds": bound.limit,
                "closed": bound.closed,
                "rounds": bound.rounds,
                "gap": {one: told.gap(bound, saved) for one, saved in bound.found.items()},
            }
    return found


def kernels_of_xla(text: str) -> dict[str, Any]:
    """What XLA launches on this machine's CPU, or why it did not compile."""
    start = time.perf_counter()
    try:
        launched = xla.compile_text(text).kernels
    except Exception as error:  # XLA's own errors have no common base
        return {"error": str(error).splitlines()[0][:120]}
    memory = sum(count for opcode, count in launched.items() if opcode not in ELSEWHERE)
    took = time.perf_counter() - start
    return {"memory_intensive": memory, "launched": dict(launched), "compile_seconds": took}


def table(results: dict[str, Any]) -> str:
    """One line per module for the first target."""
    lines = [
        "| module | kernels: exhaustive, explore, exact, auto | estimated | beam below the bound | "
        "planning: exhaustive, explore, exact | XLA:CPU's kernels | auto / XLA |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        one = found[TARGETS[0]]
        kernels = ", ".join(str(one[planner]["kernels"]) for planner in STITCHING)
        took = ", ".join(
            f"{one[planner]['planning_seconds']:.1f}"
            for planner in ("exhaustive", "explore", "exact")
        )
        bound = one["bound"]
        gap = f"{bound['gap']['explore']:.2%}" + ("" if bound["closed"] else " (open)")
        theirs = found["xla"].get("memory_intensive")
        share = f"{_ours(found) / theirs:.2f}" if theirs else "-"
        lines.append(
            f"| {name} | {kernels} | {one['auto']['estimated_seconds'] * 1e3:.2f} ms | {gap} | "
            f"{took} s | {theirs or found['xla'].get('error', '-')} | {share} |"
        )
    return "\n".join([*lines, "", *_bars(results)]) + "\n"


def _ours(found: dict[str, Any]) -> int:
    """Kernels of `auto` and what it leaves out that is no library call: to hold against XLA's."""
    best = found[TARGETS[0]]["auto"]
    return int(best["kernels"] + best["left_out"])


def _bars(results: dict[str, Any]) -> list[str]:
    """The issue's bars as sentences, held or not."""
    worse = [
        f"{name} ({target})"
        for name, found in results.items()
        for target in TARGETS
        for planner in ("exhaustive", "explore", "exact")
        if found[target]["auto"]["estimated_seconds"]
        > found[target][planner]["estimated_seconds"] * (1 + 1e-9)
    ]
    bounds = [found[target]["bound"] for found in results.values() for target in TARGETS]
    closed = [bound["gap"]["explore"] for bound in bounds if bound["closed"]]
    bert = results.get("bert_train", {})
    theirs = bert.get("xla", {}).get("memory_intensive")
    share = f"{_ours(bert) / theirs:.2f}" if theirs else "not measured"
    return [
        f"Targets {', '.join(TARGETS)}. `auto` is worse than another planner on: "
        f"{', '.join(worse) or 'none'}.",
        f"Beam below the bound at most {max(closed, default=0):.2%} where it is closed "
        f"({len(closed)} of {len(bounds)}; the bar is {GAP:.0%}).",
        f"BERT training: {share} of XLA:CPU's memory-intensive kernels (the paper's: at most 0.5 "
        "of XLA:GPU's of 2020).",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.planners", description=__doc__)
    parser.add_argument("modules", nargs="*", help="names; default: all")
    parser.add_argument("--xla", action="store_true", help="compile with XLA again")
    options = parser.parse_args()
    names = [path.name.removesuffix(".hlo.xz") for path in sorted(WORKLOADS.glob("*.hlo.xz"))]
    chosen = [name for name in names if name in options.modules or not options.modules]
    results = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in chosen:
        text = xla.read(WORKLOADS / f"{name}.hlo.xz")
        known = results.get(name, {}).get("xla", {})
        results[name] = {target: measured(text, target) for target in TARGETS} | {"xla": known}
        print(name, results[name][TARGETS[0]]["auto"], flush=True)
        written(results)
    for name in sorted(chosen, key=lambda name: results[name][TARGETS[0]]["auto"]["kernels"]):
        if options.xla or "memory_intensive" not in results[name]["xla"]:
            results[name]["xla"] = kernels_of_xla(xla.read(WORKLOADS / f"{name}.hlo.xz"))
            print(name, results[name]["xla"], flush=True)
            written(results)


def written(results: dict[str, Any]) -> None:
    """Results so far, in order."""
    ordered = dict(sorted(results.items()))
    record.write_figures(FIGURES, ordered)
    whole = {name: found for name, found in ordered.items() if TARGETS[0] in found}
    record.write_table(TABLE, table(whole), "python -m bench.planners")


if __name__ == "__main__":
    main()
