"""`python -m bench.cpu_subgraphs [NAME...]`: the eight subgraphs, every contestant, one run.

Inside TensorFlow: TF's own operations, XLA (jit_compile=True), hand-written kernels and generated
kernels, the last two through the same StitchedFusion operation. Outside: the bare kernels. All are
interleaved in one process; results are judged against float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench import contestants, generated, launches, report
from bench.cpu_subgraphs import hand, subgraphs
from bench.record import RESULTS
from stitchcore.errors import Refused
from stitchcore.verify.accuracy import Judgement
from stitchcore.verify.timing import Comparison, compare


def enter(subgraph: subgraphs.Subgraph) -> tuple[dict[str, contestants.Contestant], list[str]]:
    """Who can run, and why who cannot does not."""
    entered = {
        "tf": contestants.of_function(subgraph, subgraph.function),
        "xla": contestants.of_function(subgraph, subgraph.function, jit=True),
    }
    if subgraph.also is not None:
        fused = subgraph.also

        def own_way(*arguments: object) -> list[object]:
            fused(*arguments)
            return list(arguments[: len(subgraph.updates)])

        entered["tf_fused"] = contestants.of_function(subgraph, own_way)
    written = hand.PROGRAMS[subgraph.name]()
    entered["hand"] = contestants.of_program(subgraph, written)
    entered["bare_hand"] = contestants.of_bare(subgraph, written)
    refused = []
    try:
        text = generated.hlo(subgraph.function, subgraph.inputs)
        module = generated.compiled(text)
        made = generated.updating(launches.program(module, subgraph.inputs), subgraph.updates)
        entered["generated"] = contestants.of_program(subgraph, made)
        entered["bare_generated"] = contestants.of_bare(subgraph, made)
        refused += [
            f"scalar loop {loop.loop}: {loop.reason}"
            for unit in module.units
            for loop in unit.library.scalar_loops
        ]
    except (launches.NotWhole, Refused) as reason:
        refused.append(f"generated: {reason}")
    return entered, refused


def wrong(judgements: Mapping[str, list[Judgement]], results: tuple[str, ...]) -> list[str]:
    """Up to three failed results of each contestant, and how many there are."""
    found = []
    for name, listed in judgements.items():
        failed = [f"{r}: {j}" for r, j in zip(results, listed, strict=True) if not j.passed]
        found += [f"{name} {one}" for one in failed[:3]]
        if len(failed) > 3:
            found.append(f"{name}: WRONG in {len(failed)} results in all")
    return found


def run(name: str, rounds: int, seconds: float) -> report.Row:
    subgraph = subgraphs.build(name)
    entered, notes = enter(subgraph)
    ours = [c for c in ("hand", "bare_hand", "generated", "bare_generated") if c in entered]
    judgements = contestants.judged(subgraph, entered, ours)
    notes += wrong(judgements, subgraph.results)
    calls = {contestant: entry.call for contestant, entry in entered.items()}
    comparison: Comparison = compare(calls, rounds, 0.004, seconds)
    return report.row(name, subgraph.title, comparison, notes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_subgraphs", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(subgraphs.BUILDERS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=12.0, help="limit for each subgraph")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(subgraphs.BUILDERS)):
        parser.error(f"no subgraph {', '.join(unknown)}: there are {', '.join(subgraphs.BUILDERS)}")
    rows = []
    for name in options.names:
        rows.append(run(name, options.rounds, options.seconds))
        print(report.text(rows[-1:]), flush=True)
    report.write(rows, options.out / "cpu_subgraphs", "python -m bench.cpu_subgraphs")
    print(report.text(rows))
    return 1 if any("WRONG" in note for row in rows for note in row.notes) else 0


if __name__ == "__main__":
    sys.exit(main())
