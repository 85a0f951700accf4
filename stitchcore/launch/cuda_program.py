"""A launch table from Kernel objects: words in the ABI's order, grids, and the arena's plan.

Temporaries, scratch, words that fit no parameter and ranges of checks are regions of one arena; a
region's memory is used again once the launches that use it are in the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_parameters import PARAMETER_WORDS, WordKind, is_cooperative, words
from stitchcore.launch.cuda_table import (
    BARRIER_BYTES,
    CHECK_BYTES,
    BarrierWord,
    CheckRanges,
    Cubin,
    Input,
    InRegion,
    KernelEntry,
    LaunchEntry,
    LaunchTable,
    Lifetime,
    Output,
    Region,
    Value,
    Word,
    plan_arena,
    total,
)
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import size_of
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role


@dataclass(frozen=True)
class Temporary:
    """Memory between launches: written by one, read by later ones."""

    position: int


Place = Input | Output | Temporary


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of `kernel`. `buffers` are for its inputs, then its outputs. `symbols` gives its
    symbols over the program's; one without an entry has the program's symbol of that name.
    `capped`: one wave of blocks is enough; None: where all must be resident at once."""

    kernel: Kernel
    module: int
    threads: int
    shared_bytes: int
    buffers: tuple[Place, ...]
    symbols: Mapping[str, Index] = field(default_factory=dict)
    capped: bool | None = None

    def bytes_of(self, buffer: Buffer) -> Index:
        size = index.multiply(size_of(buffer), DTYPES[buffer.dtype].bytes)
        return index.substitute(size, self.symbols)

    @property
    def outside(self) -> tuple[Buffer, ...]:
        return self.kernel.with_role(Role.INPUT) + self.kernel.with_role(Role.OUTPUT)


@dataclass(frozen=True)
class Clock:
    """When launches run beside other work: `moments` has one for each launch, in their order, and
    `held` what that other work uses of the arena, by moments. A temporary in both lives as long as
    either says, and is as large."""

    moments: tuple[int, ...]
    held: Mapping[Temporary, Lifetime] = field(default_factory=dict)


def temporaries(launches: Sequence[KernelLaunch], clock: Clock) -> dict[Temporary, int]:
    """The region that each temporary has in `launch_table(launches, ..., clock)`."""
    used = [p for one in launches for p in one.buffers if isinstance(p, Temporary)]
    return {place: number for number, place in enumerate(dict.fromkeys([*used, *clock.held]))}


def launch_table(
    launches: Sequence[KernelLaunch],
    modules: Sequence[Sequence[Cubin]],
    symbols: Sequence[str],
    inputs: int,
    outputs: int,
    driver: int,
    clock: Clock | None = None,
) -> LaunchTable:
    """The table of `launches` in their order, with `inputs` and `outputs` of the program.

    An input that no kernel takes may be of any size. With `clock` the caller runs work of its own
    between launches. Raises ValueError for a launch that does not give every buffer of its kernel a
    place.
    """
    for launch in launches:
        if len(launch.buffers) != len(launch.outside):
            raise ValueError(
                f"{launch.kernel.name}: {len(launch.outside)} buffers, {len(launch.buffers)} places"
            )
    sizes = _sizes(launches)
    arena = _Arena(launches, sizes, clock or Clock(tuple(range(len(launches)))))
    kernels = list(dict.fromkeys(_entry(launch) for launch in launches))
    entries = []
    checks = 0
    for number, launch in enumerate(launches):
        entry = _entry(launch)
        entries.append(
            LaunchEntry(
                kernel=kernels.index(entry),
                grid=_grid(launch),
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


def _entry(launch: KernelLaunch) -> KernelEntry:
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


def _grid(launch: KernelLaunch) -> Index:
    """Blocks for the phase with most tasks; 0 where there is nothing to do."""
    most: Index = 0
    for phase in launch.kernel.phases:
        tasks = [index.maximum(section.tasks, 0) for section in phase.sections]
        most = index.maximum(most, total(tasks))
    return index.substitute(most, launch.symbols)


def _sizes(launches: Sequence[KernelLaunch]) -> dict[Place, Index]:
    """Bytes of each place: what the most demanding of its kernels needs."""
    sizes: dict[Place, Index] = {}
    for launch in launches:
        for place, buffer in zip(launch.buffers, launch.outside, strict=True):
            size = launch.bytes_of(buffer)
            sizes[place] = index.maximum(sizes[place], size) if place in sizes else size
    return sizes


def _words(launch: KernelLaunch, arena: _Arena, number: int) -> tuple[Word, ...]:
    places = iter(launch.buffers)
    found: list[Word] = []
    for word in words(launch.kernel):
        match word.kind:
            case WordKind.BUFFER:
                place = next(places)
                if isinstance(place, Temporary):
                    found.append(InRegion(arena.temporaries[place]))
                else:
                    found.append(place)
            case WordKind.SYMBOL:
                found.append(Value(launch.symbols.get(word.name, Variable(word.name))))
            case WordKind.SCRATCH:
                found.append(InRegion(arena.scratch[number]))
            case WordKind.BARRIER:
                found.append(BarrierWord())
            case WordKind.CHECKS:
                found.append(CheckRanges())
    return tuple(found)


class _Arena:
    """Regions of the arena by what they are for, as numbers in `regions`."""

    def __init__(
        self, launches: Sequence[KernelLaunch], sizes: Mapping[Place, Index], clock: Clock
    ) -> None:
        self.lifetimes: list[Lifetime] = []
        moments = clock.moments
        self.temporaries = {
            place: self.add(*_life(launches, place, sizes.get(place, 0), clock))
            for place in temporaries(launches, clock)
        }
        self.scratch: dict[int, int] = {}
        self.words: dict[int, int] = {}
        for number, launch in enumerate(launches):
            now = moments[number]
            count = len(words(launch.kernel))
            if launch.kernel.with_role(Role.SCRATCH):
                size = index.substitute(launch.kernel.scratch_bytes, launch.symbols)
                self.scratch[number] = self.add(size, now, now)
            if count > PARAMETER_WORDS:
                self.words[number] = self.add(8 * count, now, now)
        checks = sum(len(launch.kernel.errors) for launch in launches)
        meets = any(is_cooperative(launch.kernel) for launch in launches)
        always = min(moments, default=0), max(moments, default=0)
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
    launches: Sequence[KernelLaunch], place: Temporary, size: Index, clock: Clock
) -> tuple[Index, int, int]:
    """Bytes of a temporary, and the moments of its first and last use."""
    pairs = zip(clock.moments, launches, strict=True)
    users = [moment for moment, launch in pairs if place in launch.buffers]
    if (held := clock.held.get(place)) is not None:
        users += [held.first, held.last]
        size = index.maximum(size, held.bytes)
    return size, min(users), max(users)
