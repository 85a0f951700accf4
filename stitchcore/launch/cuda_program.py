"""A launch table from Kernel objects: words in the ABI's order, grids, and the arena's plan.

Temporaries, scratch, words that fit no parameter and ranges of checks are regions of one arena; a
region's memory is used again once the launches that use it are in the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stitchcore.launch.cuda_parameters import PARAMETER_WORDS, WordKind, is_cooperative, words
from stitchcore.launch.cuda_table import (
    BARRIER_BYTES,
    CHECK_BYTES,
    BarrierWord,
    CheckRanges,
    Cubin,
    InRegion,
    KernelEntry,
    LaunchEntry,
    LaunchTable,
    Lifetime,
    Region,
    Value,
    Word,
    plan_arena,
)
from stitchcore.launch.place import Input, Launch, Output, Place, Temporary
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.loop_ir.nodes import Kernel, Role


@dataclass(frozen=True)
class CudaLaunch(Launch):
    """A launch of what module `module` of the program holds. `symbols` gives the kernel's symbols
    over the program's; one without an entry has the program's symbol of that name. `capped`: one
    wave of blocks is enough; None: where all must be resident at once."""

    inputs: tuple[Place, ...]
    module: int
    threads: int
    shared_bytes: int
    symbols: Mapping[str, Index] = field(default_factory=dict)
    capped: bool | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        return self.inputs + self.outputs

    @property
    def sizes(self) -> tuple[Index, ...]:
        """Bytes at each of `places`."""
        buffers = self.kernel.with_role(Role.INPUT) + self.kernel.with_role(Role.OUTPUT)
        return tuple(index.substitute(bytes_of(buffer), self.symbols) for buffer in buffers)


@dataclass(frozen=True)
class LaunchSchedule:
    """When launches run beside other work: `points` has one for each launch, in their order, and
    `live` what that other work uses of the arena, by points. A temporary in both lives as long as
    either says, and is as large."""

    points: tuple[int, ...]
    live: Mapping[Temporary, Lifetime] = field(default_factory=dict)


def temporaries(launches: Sequence[CudaLaunch], schedule: LaunchSchedule) -> dict[Temporary, int]:
    """The region that each temporary has in `launch_table(launches, ..., schedule)`."""
    used = [p for launch in launches for p in launch.places if isinstance(p, Temporary)]
    return {place: number for number, place in enumerate(dict.fromkeys([*used, *schedule.live]))}


def launch_table(
    launches: Sequence[CudaLaunch],
    modules: Sequence[Sequence[Cubin]],
    symbols: Sequence[str],
    inputs: int,
    outputs: int,
    driver: int,
    schedule: LaunchSchedule | None = None,
) -> LaunchTable:
    """The table of `launches` in their order, with `inputs` and `outputs` of the program.

    An input that no kernel takes may be of any size. With `schedule` the caller runs work of its
    own between launches. Raises ValueError for a launch that does not give every buffer of its
    kernel a place.
    """
    for launch in launches:
        if len(launch.places) != len(launch.sizes):
            raise ValueError(
                f"{launch.kernel.name}: {len(launch.sizes)} buffers, {len(launch.places)} places"
            )
    sizes = _sizes(launches)
    arena = _Arena(launches, sizes, schedule or LaunchSchedule(tuple(range(len(launches)))))
    kernels = list(dict.fromkeys(_entry(launch) for launch in launches))
    entries = []
    checks = 0
    for number, launch in enumerate(launches):
        entry = _entry(launch)
        entries.append(
            LaunchEntry(
                kernel=kernels.index(entry),
                grid=index.substitute(grid(launch.kernel), launch.symbols),
                words=_words(launch, arena, number),
                words_region=arena.words.get(number),
                first_check=checks if entry.checks else None,
            )
        )
        checks += entry.checks
    return LaunchTable(
        driver=driver,
        symbols=tuple(symbols),
        inputs=tuple(sizes.get(Input(i), 0) for i in range(inputs)),
        outputs=tuple(sizes.get(Output(i), 0) for i in range(outputs)),
        arena=arena.size,
        regions=arena.regions,
        modules=tuple(tuple(cubins) for cubins in modules),
        kernels=tuple(kernels),
        launches=tuple(entries),
        checks=checks,
        checks_region=arena.checks,
        barrier_region=arena.barrier,
    )


def _entry(launch: CudaLaunch) -> KernelEntry:
    cooperative = is_cooperative(launch.kernel)
    return KernelEntry(
        name=launch.kernel.name,
        module=launch.module,
        threads=launch.threads,
        shared_bytes=launch.shared_bytes,
        cooperative=cooperative,
        capped=cooperative if launch.capped is None else launch.capped,
        words=len(words(launch.kernel)),
        checks=len(launch.kernel.errors),
    )


def grid(kernel: Kernel) -> Index:
    """Blocks for the phase with most of them; 0 where there is nothing to do."""
    most: Index = 0
    for phase in kernel.phases:
        blocks = [section.blocks(kernel.threads) for section in phase.sections]
        most = index.maximum(most, index.total(blocks))
    return most


def _sizes(launches: Sequence[CudaLaunch]) -> dict[Place, Index]:
    """Bytes of each place: what the most demanding of its kernels needs."""
    sizes: dict[Place, Index] = {}
    for launch in launches:
        for place, size in zip(launch.places, launch.sizes, strict=True):
            sizes[place] = index.maximum(sizes[place], size) if place in sizes else size
    return sizes


def _words(launch: CudaLaunch, arena: _Arena, number: int) -> tuple[Word, ...]:
    places = iter(launch.places)
    addresses: list[Word] = []
    for word in words(launch.kernel):
        match word.kind:
            case WordKind.BUFFER:
                place = next(places)
                if isinstance(place, Temporary):
                    addresses.append(InRegion(arena.temporaries[place]))
                else:
                    addresses.append(place)
            case WordKind.SYMBOL:
                addresses.append(Value(launch.symbols.get(word.name, Variable(word.name))))
            case WordKind.SCRATCH:
                addresses.append(InRegion(arena.scratch[number]))
            case WordKind.BARRIER:
                addresses.append(BarrierWord())
            case WordKind.CHECKS:
                addresses.append(CheckRanges())
    return tuple(addresses)


class _Arena:
    """Regions of the arena by what they are for, as numbers in `regions`."""

    def __init__(
        self, launches: Sequence[CudaLaunch], sizes: Mapping[Place, Index], schedule: LaunchSchedule
    ) -> None:
        self.lifetimes: list[Lifetime] = []
        points = schedule.points
        self.temporaries = {
            place: self.add(*_life(launches, place, sizes.get(place, 0), schedule))
            for place in temporaries(launches, schedule)
        }
        self.scratch: dict[int, int] = {}
        self.words: dict[int, int] = {}
        for number, launch in enumerate(launches):
            now = points[number]
            count = len(words(launch.kernel))
            if launch.kernel.with_role(Role.SCRATCH):
                size = index.substitute(launch.kernel.scratch_bytes, launch.symbols)
                self.scratch[number] = self.add(size, now, now)
            if count > PARAMETER_WORDS:
                self.words[number] = self.add(8 * count, now, now)
        checks = sum(len(launch.kernel.errors) for launch in launches)
        meets = any(is_cooperative(launch.kernel) for launch in launches)
        always = min(points, default=0), max(points, default=0)
        self.checks = self.add(CHECK_BYTES * checks, *always) if checks else None
        self.barrier = self.add(BARRIER_BYTES, *always) if meets else None
        offsets, self.size = plan_arena(self.lifetimes)
        self.regions = tuple(
            Region(offset, life.bytes) for offset, life in zip(offsets, self.lifetimes, strict=True)
        )

    def add(self, size: Index, first: int, last: int) -> int:
        self.lifetimes.append(Lifetime(size, first, last))
        return len(self.lifetimes) - 1


def _life(
    launches: Sequence[CudaLaunch], place: Temporary, size: Index, schedule: LaunchSchedule
) -> tuple[Index, int, int]:
    """Bytes of a temporary, and the points of its first and last use."""
    pairs = zip(schedule.points, launches, strict=True)
    users = [point for point, launch in pairs if place in launch.places]
    if (live := schedule.live.get(place)) is not None:
        users += [live.first, live.last]
        size = index.maximum(size, live.bytes)
    return size, min(users), max(users)
