"""What one launch costs the host: no allocation, and (printed, not judged) its nanoseconds."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from stitchcore.inject import build
from stitchcore.launch.cuda_table import (
    BarrierWord,
    Cubin,
    InRegion,
    LaunchTable,
    Region,
    Value,
    write,
)
from stitchcore.launch.place import Input, Output
from tests.launch.standin_cuda import FakeKernel, compile_shared, fake_cubin, launch_sources
from tests.launch.tables import REDUCE, ROWS, one_kernel

BUFFERS, RUNS = 24, 20000


def a_jobs_launch() -> LaunchTable:
    """One kernel between many buffers of unknown length, with scratch and a grid barrier."""
    words = (
        *map(Input, range(BUFFERS)), *map(Output, range(BUFFERS)),
        Value(ROWS * 2), InRegion(0), BarrierWord(),
    )  # fmt: skip
    kernel = FakeKernel(words=len(words))
    entry = replace(REDUCE, words=len(words), checks=0)
    one = one_kernel()
    return replace(
        one,
        inputs=(ROWS * 16,) * BUFFERS,
        outputs=(ROWS * 16,) * BUFFERS,
        arena=ROWS * 256 + 256,
        regions=(Region(256, ROWS * 256), Region(0, 8)),
        barrier_region=1,
        modules=((Cubin("sm_90", fake_cubin({entry.name: kernel})),),),
        kernels=(entry,),
        launches=(replace(one.launches[0], words=words),),
    )


def test_a_launch_allocates_nothing(tmp_path: Path) -> None:
    """Of a job: 48 buffers, each checked against a size that is computed."""
    sources = [Path(__file__).with_name("launch_cost.cc"), build.NATIVE / "gpu.cc"]
    flags = ("-O2", "-pthread", f"-I{build.NATIVE}")
    program = compile_shared([*sources, *launch_sources()], "launch_cost", *flags)
    table = tmp_path / "table"
    table.write_bytes(write(a_jobs_launch()))
    command = [str(program), str(table), "8", str(BUFFERS), str(RUNS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    nanoseconds, allocations, launches = map(int, done.stdout.split())
    print(f"{nanoseconds} ns a launch of {2 * BUFFERS} buffers")
    assert (allocations, launches) == (0, RUNS)
