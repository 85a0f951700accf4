"""The space of schedules: what of a kernel's loops may be chosen otherwise, as data.

A point is a Schedule: a few numbers in place of those that limits.py takes for every kernel of a
device, among them the launch dimension (threads of a block). FusionStitching searches such spaces:
(split_dim, sword, sched_type) and the block size (Long et al. 2018, arXiv 1811.05213),
templates and launch dimensions (Zheng et al. 2020, arXiv 2009.10924). Every point is a
right kernel; many of one kernel are the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from stitchcore.device.records import Device


@dataclass(frozen=True)
class Schedule:
    """Choices for one kernel; None is what the device's limits have (`limits.Limits`, where the
    fields are explained). `threads` are those of a GPU's block."""

    threads: int | None = None
    task_elements: int | None = None
    chain_elements: int | None = None
    max_splits: int | None = None
    least_part_rows: int | None = None
    few_rows: int | None = None
    long_row: int | None = None
    lane_block: int | None = None
    stage_depth: int | None = None
    run_lanes: int | None = None
    register_words: int | None = None
    turned_lanes: int | None = None
    warp_rows: bool | None = None
    packs: bool | None = None
    enough_blocks: int | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        """The choices that are not the device's own, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def limits(self) -> dict[str, Any]:
        """`chosen` without the block's threads, which are no limit."""
        return {name: value for name, value in self.chosen.items() if name != "threads"}

    def __str__(self) -> str:
        return " ".join(f"{name}={int(value)}" for name, value in self.chosen.items())

    def on(self, device: Device) -> Device:
        """`device` with groups of this block's lanes."""
        return device if self.threads is None else replace(device, lanes=self.threads)


DEFAULT = Schedule()
"""What limits.py says for the device."""

THREADS = (64, 128, 512, 1024)
"""Of a block, beside the device's own number."""

_CPU: Mapping[str, tuple[Any, ...]] = {
    "task_elements": (1024, 4096, 65536, 262144),
    "chain_elements": (256, 4096),
    "stage_depth": (0, 8, 128),
    "lane_block": (1024, 16384),
    "max_splits": (8,),
    "long_row": (4096,),
    "few_rows": (0,),
    "turned_lanes": (0, 32),
}


def _gpu(lanes: int) -> Mapping[str, tuple[Any, ...]]:
    """In blocks of `lanes` threads."""
    return {
        "task_elements": (2 * lanes, 4 * lanes, 16 * lanes),
        "least_part_rows": (1, 2, 4, 8),
        "warp_rows": (False, True),
        "few_rows": (0,),
        "long_row": (2048,),
        "run_lanes": (0,),
        "register_words": (0,),
        "enough_blocks": (1000,),  # more than there are: rows are split
    }


def points(device: Device) -> Iterator[Schedule]:
    """The default, then every other launch dimension (on a CPU: rows apart), then one further
    choice for each of them: a star, as the choices that matter together are how many lanes there
    are and how much a task has."""
    centres = tuple(_centres(device))
    yield from centres
    for centre in centres:
        for name, values in _choices(device, centre).items():
            for value in values:
                yield replace(centre, **{name: value})


def unmeasured(device: Device) -> Iterator[tuple[Schedule, ...]]:
    """Choices on a GPU that are worth an estimate whenever a kernel is compiled, each to be made on
    what was chosen before: few rows a part or few elements a task, where the GPU would be idle for
    want of tasks; then the launch dimension."""
    yield (*(Schedule(least_part_rows=count) for count in (1, 4)),)
    yield (*(Schedule(task_elements=count * device.lanes) for count in (1, 4)),)
    yield (*(Schedule(threads=count) for count in (64, 512)),)


def contains(device: Device, schedule: Schedule) -> bool:
    """Whether the space of `device` has `schedule`."""
    return any(point == schedule for point in points(device))


def _centres(device: Device) -> Iterator[Schedule]:
    yield DEFAULT
    if device.kind == "cpu":
        yield Schedule(packs=False)
        return
    yield from (Schedule(threads=count) for count in THREADS if count != device.lanes)


def _choices(device: Device, centre: Schedule) -> Mapping[str, tuple[Any, ...]]:
    return _CPU if device.kind == "cpu" else _gpu(centre.on(device).lanes)


def read(record: object) -> Schedule:
    """A Schedule from its `chosen`, as JSON has it. Raises ValueError saying what is wrong."""
    if not isinstance(record, dict):
        raise ValueError("a schedule is an object")
    known = {field.name for field in fields(Schedule)}
    for name, value in record.items():
        if name not in known:
            raise ValueError(f"{name!r} is no choice")
        if type(value) not in (int, bool):
            raise ValueError(f"{name} is a number")
    return Schedule(**record)
