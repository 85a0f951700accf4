"""The papers' tables by name. Each is a function from the models' modules to rows: the papers'
figures, XLA's and ours, and what each figure is.

Nothing here needs the device that it speaks of: kernels are counted and bytes added up, times are
estimated for a device's record (fusion/cost.py), and what was measured says so. An empty cell is
what this machine cannot tell; a note says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stitchcore.autotune.kernels import WINS
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion.mechanisms import ALL, SUMMARIES, Mechanism, Mechanisms
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import THREADS
from stitchcore.reproduce import papers
from stitchcore.reproduce.counts import LOCAL, Counts, counted, searched, stage_seconds
from stitchcore.reproduce.mapping import mapping
from stitchcore.reproduce.papers import MODELS, Model
from stitchcore.verify import xla_baseline

Cell = str | int | float | None
Progress = Callable[[str], None]

PAPERS_DEVICE = "sm_70"
"""The papers' V100."""

TIMED = {"sm_70": "V100", "sm_80": "A100", "sm_90": "H100"}
"""Records whose kernels' times are estimated."""

MAPPED = (1, 32, 1000, 30_000, 1_000_000)
"""Rows and columns whose mapping is told."""

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Table:
    """`bars` is what a picture shows: for each label the value of each of `series`."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]
    series: tuple[str, ...] = ()
    bars: tuple[tuple[str, tuple[float | None, ...]], ...] = ()


@dataclass
class Subject:
    """A model's module, and what was counted of it so far: tables share it."""

    model: Model
    text: str
    known: dict[tuple[str, Mechanisms], Counts] = field(default_factory=dict)

    @cached_property
    def module(self) -> Module:
        return parse(self.text)

    @cached_property
    def xla(self) -> xla_baseline.Kernels | xla_baseline.NoXla:
        try:
            return xla_baseline.kernels(self.text)
        except xla_baseline.NoXla as reason:
            return reason

    def counts(self, target: str, mechanisms: Mechanisms = ALL) -> Counts:
        """Of the device of that record. Raises Refused where the text is no module."""
        key = target, mechanisms
        if key not in self.known:
            self.known[key] = counted(self.module, DEVICES[target], mechanisms)
        return self.known[key]


Subjects = Mapping[str, Subject]


def subjects(texts: Mapping[str, str]) -> dict[str, Subject]:
    """By the papers' names, from modules' texts by ours."""
    return {one.name: Subject(one, texts[one.module]) for one in MODELS if one.module in texts}


# ---- kernels -------------------------------------------------------------------------------------
def fs20_table2(of: Subjects, host: Device, progress: Progress) -> Table:
    """FusionStitching 2020, Table 2: kernels by class."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    notes: list[str] = []
    shares: list[float] = []
    for name, printed in papers.FS20_TABLE_2.items():
        if name not in of:
            continue
        progress(f"fs20-table2: {name}")
        subject = of[name]
        ours = subject.counts(host.target)
        for technique, kernels in printed.items():
            rows.append((name, f"{technique}, paper", kernels.math, kernels.memory, kernels.copies))
        theirs = subject.xla
        if isinstance(theirs, xla_baseline.Kernels):
            rows.append((name, "XLA:CPU, here", theirs.math, theirs.memory, theirs.copies))
            share = ours.memory / theirs.memory
            shares.append(share)
            notes += _more_than(name, share, papers.FS20_MEMORY_SHARE, ours)
        else:
            rows.append((name, "XLA:CPU, here", None, None, None))
            notes.append(f"{name}: XLA: {theirs}")
        local = subject.counts(host.target, LOCAL)
        rows.append((name, "ours, local alone", local.math, local.memory, local.copies))
        rows.append((name, "ours", ours.math, ours.memory, ours.copies))
        paper = printed["FS"].memory / printed["XLA"].memory
        here = ours.memory / theirs.memory if isinstance(theirs, xla_baseline.Kernels) else None
        bars.append((name, (paper, here)))
    notes += _mean_share(shares, papers.FS20_MEMORY_SHARE, "FusionStitching 2020")
    return Table(
        "fs20-table2",
        f"Kernels by class (FusionStitching 2020, Table 2), ours planned for {host.target}",
        ("model", "technique", "math>", "memory>", "copies>"),
        tuple(rows),
        (*notes, *_about_counts(of)),
        ("paper: of XLA's memory-intensive kernels", "here"),
        tuple(bars),
    )


def astitch_table3(of: Subjects, host: Device, progress: Progress) -> Table:
    """AStitch, Table 3: memory-intensive kernels and copies."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    notes: list[str] = []
    shares: list[float] = []
    for name, printed in papers.ASTITCH_TABLE_3.items():
        if name not in of:
            continue
        progress(f"astitch-table3: {name}")
        ours, theirs = of[name].counts(host.target), of[name].xla
        memory_xla, copies_xla, share = None, None, None
        if isinstance(theirs, xla_baseline.Kernels):
            memory_xla, copies_xla = theirs.memory, theirs.copies
            share = ours.memory / memory_xla
            shares.append(share)
            notes += _more_than(name, share, papers.ASTITCH_MEMORY_SHARE, ours)
        rows.append((name, "memory", printed.memory_xla, printed.memory, memory_xla, ours.memory))
        rows.append((name, "copies", printed.copies_xla, printed.copies, copies_xla, ours.copies))
        bars.append((name, (printed.memory / printed.memory_xla, share)))
    notes += _mean_share(shares, papers.ASTITCH_MEMORY_SHARE, "AStitch")
    return Table(
        "astitch-table3",
        f"Kernels (AStitch, Table 3), ours planned for {host.target}",
        ("model", "kernels", "XLA, paper>", "AStitch, paper>", "XLA:CPU, here>", "ours>"),
        tuple(rows),
        (*notes, *_about_counts(of)),
        ("paper: of XLA's memory-intensive kernels", "here"),
        tuple(bars),
    )


def _more_than(name: str, share: float, paper: float, ours: Counts) -> list[str]:
    """Why a model has more kernels, against XLA's, than the paper has on average."""
    if share <= paper:
        return []
    return [
        f"{name}: {share:.0%} of XLA:CPU's, more than the paper's {paper:.0%}: its {ours.math} "
        f"library calls leave {ours.memory / max(ours.math, 1):.1f} memory-intensive kernels "
        "between two of them, and no kernel reaches across one"
    ]


def _mean_share(shares: Sequence[float], paper: float, which: str) -> list[str]:
    if not shares:
        return []
    mean = sum(shares) / len(shares)
    return [f"memory-intensive kernels: {mean:.1%} of XLA:CPU's on average; {which}: {paper:.1%}"]


def _about_counts(of: Subjects) -> list[str]:
    differ = [f"{one.model.name}: {one.model.differs}" for one in of.values() if one.model.differs]
    return [
        "a loop's body counts once, ours and XLA's; XLA:GPU's own counts need a jaxlib for CUDA",
        *differ,
    ]


# ---- what each mechanism is worth ----------------------------------------------------------------
def ablation(of: Subjects, host: Device, progress: Progress) -> Table:
    """Each mechanism left out by itself, on every model; AStitch does it for CRNN."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    ratios: dict[Mechanism, list[tuple[float, float]]] = {one: [] for one in Mechanism}
    for name, subject in of.items():
        progress(f"astitch-ablation: {name}")
        whole = subject.counts(PAPERS_DEVICE)
        for left_out in (None, *Mechanism):
            found = subject.counts(PAPERS_DEVICE, ALL - {left_out})
            ratio = found.seconds / whole.seconds, found.scheduled / whole.scheduled
            if left_out is not None:
                ratios[left_out].append(ratio)
            rows.append(
                (
                    name,
                    left_out.value if left_out else "all of them",
                    found.memory,
                    found.phases,
                    found.sections,
                    found.aliases,
                    round(found.bytes / MEBIBYTE, 1),
                    round(found.seconds * 1e6, 1),
                    round(ratio[0], 3),
                    round(found.scheduled * 1e6, 1),
                    round(ratio[1], 3),
                )
            )
        local = subject.counts(PAPERS_DEVICE, LOCAL)
        bars.append((name, (1.0, local.seconds / whole.seconds)))
    for mechanism, found_ratios in ratios.items():
        means = [round(_geometric_mean(of_one), 3) for of_one in zip(*found_ratios, strict=True)]
        rows.append(("geometric mean", mechanism.value, *[None] * 6, means[0], None, means[1]))
    return Table(
        "astitch-ablation",
        f"One mechanism left out, kernels of a {TIMED[PAPERS_DEVICE]} ({PAPERS_DEVICE})",
        ("model", "without", "kernels>", "phases>", "sections>", "in place>", "MiB>",
         "estimated µs>", "of all>", "scheduled µs>", "of all scheduled>"),
        tuple(rows),
        (
            *(f"{one.value}: {SUMMARIES[one]}" for one in Mechanism),
            "times are estimates: the first by the planners' cost of patterns, which sees neither "
            "sections nor thread mapping; scheduled by the evaluator of kernels as their loops are "
            "(compiler/latency.py); neither sees memory taken over (aliasing)",
            "paper, CRNN on a V100: " + ", ".join(
                f"{step} {ms:g} ms" for step, ms in papers.ASTITCH_ABLATION.items()
            ),
        ),
        ("all mechanisms", "estimated with local fusion alone"),
        tuple(bars),
    )  # fmt: skip


def schedules(of: Subjects, host: Device, progress: Progress) -> Table:
    """What searching schedules and launch dimensions gains, as FusionStitching 2018 and 2020 do."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    for name, subject in of.items():
        progress(f"fs-schedules: {name}")
        found = searched(subject.module, DEVICES[PAPERS_DEVICE])
        ratio = found.best / found.own
        rows.append(
            (name, found.kernels, found.points, found.otherwise, round(found.own, 1),
             round(found.best, 1), round(ratio, 3), found.choices)
        )  # fmt: skip
        bars.append((name, (1.0, ratio)))
    ratios = [ratio for _, (_, ratio) in bars if ratio is not None]
    rows.append(("geometric mean", *[None] * 5, round(_geometric_mean(ratios), 3), None))
    return Table(
        "fs-schedules",
        f"Schedules and launch dimensions searched for a {TIMED[PAPERS_DEVICE]} ({PAPERS_DEVICE})",
        ("model", "kernels>", "schedules>", "otherwise>", "own µs>", "searched µs>", "of own>",
         "most often"),
        tuple(rows),
        (
            "estimates of the latency-evaluator of scheduled kernels (compiler/latency.py); "
            "kernels as often as they are launched, loop bodies once",
            "schedules are the distinct kernels of the space (schedule/space.py); another than the "
            f"device's own is taken where it is estimated to take less than {WINS} of its time",
            "`stitch tune --target` compiles the best few of each kernel too, and takes none that "
            "its compiler refuses; every compilation tries a few for the kernels that take most of "
            "the time (compiler/quickest.py), which is what the ablation's `search` leaves out",
        ),
        ("the device's own schedules", "searched, estimated"),
        tuple(bars),
    )  # fmt: skip


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


# ---- times and bytes -----------------------------------------------------------------------------
def astitch_speedups(of: Subjects, host: Device, progress: Progress) -> Table:
    """Estimated: memory-intensive kernels with local fusion alone, over ours."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    found: dict[str, list[float]] = {target: [] for target in TIMED}
    for name, subject in of.items():
        progress(f"astitch-speedups: {name}")
        ratios = {
            target: subject.counts(target, LOCAL).seconds / subject.counts(target).seconds
            for target in TIMED
        }
        for target, ratio in ratios.items():
            found[target].append(ratio)
        paper = papers.ASTITCH_SPEEDUPS.get(name)
        rows.append((name, paper, *(round(ratio, 2) for ratio in ratios.values())))
        bars.append((name, (paper, ratios[PAPERS_DEVICE])))
    means = (round(_geometric_mean(ratios), 2) for ratios in found.values())
    rows.append(("geometric mean", None, *means))
    return Table(
        "astitch-speedups",
        "Speed-up of memory-intensive kernels over local fusion alone, estimated",
        ("model", "AStitch over XLA, paper>", *(f"{name}>" for name in TIMED.values())),
        tuple(rows),
        (
            "the paper's are whole steps over XLA of 2019, measured on a V100; ours are estimates "
            "of the kernels alone by each device's record: not measured",
        ),
        ("paper, whole steps", f"estimated, kernels on a {TIMED[PAPERS_DEVICE]}"),
        tuple(bars),
    )  # fmt: skip


def fs20_traffic(of: Subjects, host: Device, progress: Progress) -> Table:
    """Off-chip bytes of memory-intensive operations."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[tuple[str, tuple[float | None, ...]]] = []
    for name, subject in of.items():
        progress(f"fs20-traffic: {name}")
        ours = subject.counts(PAPERS_DEVICE)
        local = subject.counts(PAPERS_DEVICE, LOCAL)
        sizes = ours.one_by_one, local.bytes, ours.bytes
        shares = (round(1 - ours.bytes / size, 3) for size in sizes[:2])
        rows.append((name, *(round(size / MEBIBYTE, 1) for size in sizes), *shares))
        bars.append((name, tuple(size / sizes[0] for size in sizes)))
    before, after = papers.FS20_CRNN_READS
    return Table(
        "fs20-traffic",
        f"Off-chip bytes of memory-intensive operations, {PAPERS_DEVICE}",
        ("model", "one by one, MiB>", "local alone, MiB>", "ours, MiB>", "less than one by one>",
         "less than local>"),
        tuple(rows),
        (
            f"paper, CRNN's reads: XLA {before / 1e6:.1f} MB, FusionStitching {after / 1e6:.1f} MB "
            f"(-{1 - after / before:.0%})",
            "bytes that kernels read and write by their shapes, caches not counted in; a loop's "
            "body once",
        ),
        ("one by one", "local alone", "ours"),
        tuple(bars),
    )  # fmt: skip


def compile_time(of: Subjects, host: Device, progress: Progress) -> Table:
    """Seconds from HLO text to loaded code, on this machine."""
    rows: list[tuple[Cell, ...]] = []
    for name, subject in of.items():
        progress(f"compile-time: {name}")
        seconds = stage_seconds(subject.module, host)
        theirs = subject.xla
        xla = theirs.compile_seconds if isinstance(theirs, xla_baseline.Kernels) else None
        size = len(list(topological([subject.module.entry.root])))
        before = sum(took for stage, took in seconds.items() if stage != "compile")
        rows.append(
            (
                name,
                size,
                round(seconds["plan"], 2),
                round(before, 2),
                round(seconds["compile"], 2),
                None if xla is None else round(xla, 2),
            )
        )
    paper = ", ".join(f"{who} {took:g} s" for who, took in papers.ASTITCH_COMPILE_SECONDS.items())
    return Table(
        "compile-time",
        f"Seconds to compile for {host.target}, measured on this machine without a cache",
        ("model", "instructions>", "plan>", "up to source>", "C compiler>", "XLA:CPU, all of it>"),
        tuple(rows),
        (
            f"paper, 5,000 to 10,000 nodes up to LLVM IR: {paper}; FusionStitching 2020: less than "
            "30 minutes more than XLA",
        ),
    )


def astitch_mapping(of: Subjects, host: Device, progress: Progress) -> Table:
    """Adaptive thread mapping: rows and columns from 1 to a million, and the paper's example."""
    sizes = [(rows, columns) for rows in MAPPED for columns in MAPPED]
    rows: list[tuple[Cell, ...]] = []
    for count, columns in sorted({*sizes, papers.ASTITCH_PACKED_ROWS}):
        progress(f"astitch-mapping: {count:,} rows of {columns:,}")
        found = (str(mapping(count, columns, target)) for target in TIMED)
        rows.append((count, columns, *found))
    return Table(
        "astitch-mapping",
        "Adaptive thread mapping: a row's elements less their sum",
        ("rows>", "columns>", *TIMED.values()),
        tuple(rows),
        (
            "each row is a warp's, a block's, or split over several blocks, which meet at a grid "
            "barrier; then blocks that have work, in waves of what the device holds (registers by "
            "the schedule's estimate), and the share of its threads that these are",
            "blocks beyond one wave are walked by resident ones (vertical packing); blocks have "
            f"{THREADS} threads, the paper's 1,024",
            "AStitch splits rows of more than 1,024 elements where there are fewer than a wave of "
            "blocks has; here a barrier is worth it from 16,384 elements on",
            "an H200 has the multiprocessors of an H100",
        ),
    )


TABLES: Mapping[str, Callable[[Subjects, Device, Progress], Table]] = {
    "fs20-table2": fs20_table2,
    "astitch-table3": astitch_table3,
    "astitch-ablation": ablation,
    "astitch-speedups": astitch_speedups,
    "fs20-traffic": fs20_traffic,
    "compile-time": compile_time,
    "astitch-mapping": astitch_mapping,
    "fs-schedules": schedules,
}
