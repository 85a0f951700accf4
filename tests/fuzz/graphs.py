"""Fuzzer of what workers do with a stranger's GraphDef, before and where its operations may run.

    python -m tests.fuzz.graphs --count 200000 [--seed 0] GRAPH.pb...

Graphs are mutations of real ones (bytes, and structure: operations, types, shapes, edges, names,
attributes, constants, functions). Each goes the worker's way: read within limits, numbered, cut
into regions, the regions made into functions. All of it runs in child processes of bounded memory
and time (isolate.py). What is found: an exception that is no refusal, a child that dies, a graph
that takes too long, a region with an operation that is on no list. A finding's graph is written
out; the seed and number reproduce it. Refusals are what is wanted, and are counted by reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from stitchcore.errors import Refused
from stitchcore.sandbox import isolate
from tests.fuzz.mutate_graphs import mutate

MEMORY = 3 * 2**30
GRAPH_SECONDS = 100.0
BATCH = 2000
CHILD = ("-m", "tests.fuzz.graphs")
"""The child's program: this one."""


@dataclass
class Findings:
    """`outcomes` counts refusals by reason and "partitioned"; `problems` are what must not be, as
    (number, what, detail); `memory` the largest resident bytes of a child."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[int, str, str]] = field(default_factory=list)
    memory: int = 0
    slowest: float = 0.0


def one(seed: int, number: int, graphs: Sequence[bytes]) -> bytes:
    """Graph `number` of a run: a function of its arguments alone."""
    rng = np.random.default_rng((seed, number))
    return mutate(rng, graphs[int(rng.integers(len(graphs)))])


def judge(data: bytes) -> str:
    """The worker's way with one graph; "partitioned" or the reason of its refusal. Raises whatever
    is a finding."""
    from stitchcore.inject import digest
    from stitchcore.tensorflow.lower import RUNNABLE, subgraph
    from stitchcore.tensorflow.partition import partition
    from stitchcore.tensorflow.request import STRANGERS, read_graph

    try:
        graph = read_graph(data, STRANGERS)
        try:
            digest.number(graph, ())
        except ValueError as error:
            return f"number: {type(error).__name__}"
        found = partition(graph, ())
        outcome = "partitioned" if found.regions else "nothing"
        for region in found.regions:
            try:
                made = subgraph(found, region)
            except Refused:
                continue
            strange = {node.op for node in made.graph.node} - RUNNABLE
            if strange:
                raise AssertionError(f"operations that are on no list: {sorted(strange)}")
        return outcome
    except Refused as refused:
        return refused.refusal.reason.value


def child(arguments: Sequence[str]) -> int:
    """In the child: graphs `first` to `last` of a run, a JSON line before and after each."""
    told = json.loads(arguments[0])
    graphs = [Path(path).read_bytes() for path in told["graphs"]]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for number in range(told["first"], told["last"]):
        data = one(told["seed"], number, graphs)
        out.write(json.dumps({"begin": number}) + "\n")
        out.flush()
        start = time.perf_counter()
        line: dict[str, Any] = {"end": number}
        try:
            line["outcome"] = judge(data)
        except Exception:
            line["problem"] = traceback.format_exc()[-1500:]
        line["seconds"] = round(time.perf_counter() - start, 3)
        out.write(json.dumps(line) + "\n")
    out.flush()
    return 0


def run(seed: int, first: int, last: int, graphs: Sequence[Path], batch: int = BATCH) -> Findings:
    """Judge graphs `first` to `last` - 1 in children, one batch after the other. A child that dies
    or hangs is a problem of the graph that it was at; the next child goes on behind it."""
    findings = Findings()
    number = first
    while number < last:
        number = _batch(seed, number, min(last, number + batch), graphs, findings)
    return findings


def _batch(seed: int, first: int, last: int, graphs: Sequence[Path], findings: Findings) -> int:
    """Returns the number to go on with."""
    told = {
        "seed": seed,
        "first": first,
        "last": last,
        "graphs": [str(p.resolve()) for p in graphs],
    }
    argv = [sys.executable, *CHILD, "--child", json.dumps(told)]
    environment = {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    seconds = 60 + GRAPH_SECONDS * (last - first)
    limits = isolate.Limits(seconds, MEMORY, int(2 * seconds))
    with tempfile.TemporaryFile() as errors:
        process = isolate.command(
            argv, limits, environment=environment, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            at, why = _follow(process, findings)
            if at is None and why is None:
                return last
            errors.seek(0)
            words = errors.read().decode(errors="replace")[-1500:]
            findings.problems.append((first if at is None else at, str(why), words))
            return (first if at is None else at) + 1
        finally:
            process.stop()


def _follow(process: isolate.Child, findings: Findings) -> tuple[int | None, str | None]:
    """(None, None) when the child did its batch; else the graph it was at, and what happened."""
    output: IO[bytes] | None = process.process.stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    rest, at, since = b"", None, time.monotonic()
    while True:
        data = output.read()
        if data:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                at, since = _line(json.loads(line), findings), time.monotonic()
            continue
        findings.memory = max(findings.memory, isolate.usage(process.process.pid).memory)
        code = process.poll()
        if code == 0 and data == b"":
            return None, None
        if code not in (None, 0):
            return at, f"the child ended with {code}"
        if (broken := process.exceeded()) is not None:
            return at, f"the child used {broken}"
        if at is not None and time.monotonic() - since > GRAPH_SECONDS:
            return at, f"one graph took more than {GRAPH_SECONDS:g} s"
        time.sleep(0.02)


def _line(line: dict[str, Any], findings: Findings) -> int | None:
    if "begin" in line:
        return int(line["begin"])
    findings.slowest = max(findings.slowest, line["seconds"])
    if "problem" in line:
        findings.problems.append((line["end"], "an exception that is no refusal", line["problem"]))
    else:
        findings.outcomes[line["outcome"]] += 1
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 when something was found."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--child"]:
        return child(given[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.graphs")
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz_graphs"))
    told = parser.parse_args(given)
    if wrong := [path for path in told.graphs if not path.is_file()]:
        parser.error(f"not a file of a serialized GraphDef: {wrong[0]}")
    start = time.perf_counter()
    findings = run(told.seed, told.first, told.first + told.count, told.graphs)
    seconds = time.perf_counter() - start
    for outcome, count in findings.outcomes.most_common():
        print(f"{count:9} {outcome}")
    print(f"{told.count} graphs in {seconds:.0f} s, slowest {findings.slowest:.1f} s, ", end="")
    print(f"at most {findings.memory / 2**20:.0f} MiB")
    sources = [path.read_bytes() for path in told.graphs]
    for number, what, detail in findings.problems:
        told.keep.mkdir(parents=True, exist_ok=True)
        (told.keep / f"{told.seed}_{number}.pb").write_bytes(one(told.seed, number, sources))
        print(f"{number}: {what}\n{detail}")
    print(f"{len(findings.problems)} problems")
    return 1 if findings.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
