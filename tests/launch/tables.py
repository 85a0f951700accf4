"""Launch tables and programs that several tests use."""

from __future__ import annotations

from dataclasses import replace

from stitchcore.launch.cuda_table import (
    BarrierWord,
    CheckRanges,
    Cubin,
    InRegion,
    KernelEntry,
    LaunchEntry,
    LaunchTable,
    Region,
    Value,
)
from stitchcore.launch.place import Input, Output
from stitchcore.loop_ir.index import Variable, ceil_divide
from tests.launch.standin_cuda import FakeKernel, fake_cubin

ROWS = Variable("rows")
MANY = 600
"""Words of a kernel whose words fit no parameter."""

KERNELS = {
    "scale": FakeKernel(words=3),
    "reduce": FakeKernel(words=6, registers=64),
    "many": FakeKernel(words=1),
}


def cubins(*targets: str) -> tuple[Cubin, ...]:
    return tuple(Cubin(target, fake_cubin(KERNELS, target)) for target in targets)


SCALE = KernelEntry("scale", 0, 128, 0, False, False, 3)
REDUCE = KernelEntry("reduce", 0, 256, 1024, True, True, 6, checks=2)
MANY_WORDS = KernelEntry("many", 0, 64, 0, False, False, MANY)


def one_kernel(entry: KernelEntry = SCALE, *targets: str) -> LaunchTable:
    """out = f(in) over `rows` rows of 16 bytes: the smallest program."""
    words = (Input(0), Output(0), Value(ROWS))
    launch = LaunchEntry(0, ceil_divide(ROWS, 4), words[: entry.words])
    return LaunchTable(
        driver=12000,
        symbols=("rows",),
        inputs=(ROWS * 16,),
        outputs=(ROWS * 16,),
        arena=0,
        regions=(),
        modules=(cubins(*(targets or ("sm_90",))),),
        kernels=(entry,),
        launches=(launch,),
    )


def whole() -> LaunchTable:
    """Everything at once: a temporary, scratch, a grid barrier, checks, and words in memory.

    Regions: 0 temporary, 1 scratch, 2 checks, 3 barrier, 4 words.
    """
    first = LaunchEntry(0, ROWS, (Input(0), InRegion(0), Value(ROWS * 2)))
    words = (InRegion(0), Output(0), Value(ROWS), InRegion(1), BarrierWord(), CheckRanges())
    second = LaunchEntry(1, ROWS * 100, words, first_check=0)
    padding = tuple(Value(number) for number in range(MANY - 2))
    third = LaunchEntry(2, 1, (Output(0), InRegion(0), *padding), words_region=4)
    sizes = (ROWS * 16, ROWS * 8, 32, 8, 8 * MANY)
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + ceil_divide(size, 256) * 256)
    one = one_kernel()
    return replace(
        one,
        arena=starts[-1],
        regions=tuple(Region(*pair) for pair in zip(starts, sizes, strict=False)),
        checks=2,
        checks_region=2,
        barrier_region=3,
        kernels=(SCALE, REDUCE, MANY_WORDS),
        launches=(first, second, third),
    )
