"""Launch tables: written from kernels, read as untrusted bytes."""

from __future__ import annotations

import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.inject import build
from stitchcore.launch.cuda_program import (
    CudaLaunch,
    LaunchSchedule,
    grid,
    launch_table,
    temporaries,
)
from stitchcore.launch.cuda_table import (
    BarrierWord,
    CheckRanges,
    Cubin,
    InRegion,
    LaunchTable,
    Lifetime,
    Region,
    Value,
    driver_of,
    plan_arena,
    write,
)
from stitchcore.launch.place import Input, Output, Temporary
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import Phase, Scope
from stitchcore.runtime.cuda_library import CudaLibrary
from tests.launch.standin_cuda import (
    HERE,
    FakeKernel,
    Standin,
    compile_shared,
    fake_cubin,
    launch_sources,
)
from tests.launch.tables import REDUCE, SCALE, cubins, one_kernel, whole
from tests.loop_ir.sample import column_sum, softmax

Decode = Callable[[list[bytes]], list[str]]
GOOD = write(whole())
WORDS = struct.unpack_from("<Q", GOOD, 24)[0]


@pytest.fixture(scope="module")
def decode() -> Decode:
    """The library's reader under address and undefined-behaviour sanitizers."""
    sources = [one for one in launch_sources() if one.name in _READER]
    include = f"-I{build.NATIVE / 'cuda'}"
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover", include)
    target = compile_shared([HERE.parent / "launch_driver.cc", *sources], "driver", *checks)

    def run(tables: list[bytes]) -> list[str]:
        frames = b"".join(struct.pack("<Q", len(one)) + one for one in tables)
        done = subprocess.run([target], input=frames, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        return done.stdout.decode().splitlines()

    return run


_READER = ("expression.cc", "cubin.cc", "table.cc")
_CHECKED_FROM = struct.Struct("<8sII").size


def with_checksum(table: bytes) -> bytes:
    """`table`, damaged behind its checksum, with the checksum that fits it."""
    checksum = struct.pack("<I", zlib.crc32(table[_CHECKED_FROM:]))
    return table[: _CHECKED_FROM - len(checksum)] + checksum + table[_CHECKED_FROM:]


def damaged(position: int, value: int, table: bytes = GOOD) -> bytes:
    """`table` with word `position` replaced, and a checksum that fits."""
    at = 32 + 8 * position
    return with_checksum(table[:at] + struct.pack("<q", value) + table[at + 8 :])


@pytest.mark.slow
def test_what_is_written_is_read(decode: Decode) -> None:
    assert decode([GOOD, write(one_kernel())]) == ["ok 3 3", "ok 1 1"]


def test_a_damaged_file_is_refused(decode: Decode) -> None:
    cases = {
        b"": "shorter than its header",
        GOOD[:31]: "shorter than its header",
        b"X" + GOOD[1:]: "not a launch table",
        GOOD[:8] + struct.pack("<I", 2) + GOOD[12:]: "version 2 is not known",
        GOOD[:-1]: "cut short or too long",
        GOOD + b"\0": "cut short or too long",
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]): "damaged: its checksum differs",
        GOOD[:40] + bytes([GOOD[40] ^ 1]) + GOOD[41:]: "damaged: its checksum differs",
        with_checksum(GOOD[:24] + struct.pack("<Q", 2**61) + GOOD[32:]): "more words than bytes",
        with_checksum(GOOD[:24] + struct.pack("<Q", 3) + GOOD[32:]): "table ends early at word 3",
    }
    assert decode(list(cases)) == list(cases.values())


def test_what_does_not_fit_together_is_refused(decode: Decode) -> None:
    table = whole()
    first, second, third = table.launches
    kernels = table.kernels

    def with_launch(**changes: Any) -> LaunchTable:
        return replace(table, launches=(first, replace(second, **changes), third))

    def with_words(*words: Any) -> LaunchTable:
        return with_launch(words=words + second.words[len(words) :])

    def with_kernel(**changes: Any) -> LaunchTable:
        return replace(table, kernels=(replace(SCALE, **changes), *kernels[1:]))

    no_barrier = (SCALE, replace(REDUCE, cooperative=False), kernels[2])
    no_checks = (SCALE, replace(REDUCE, checks=0), kernels[2])
    cases = [
        (replace(table, driver=-1), "driver version"),
        (replace(table, checks_region=None), "no region for checks"),
        (replace(table, checks_region=5), "region"),
        (replace(table, barrier_region=None), "barrier word"),
        (replace(table, modules=((),)), "module without a cubin"),
        (replace(table, modules=(cubins("sm_90", "sm_90"),)), "cubin twice"),
        (replace(table, modules=((Cubin("sm_90", b"\x7fELF" + bytes(200)),),)), "no cubin"),
        (with_kernel(name="a b"), "kernel name"),
        (with_kernel(name="1a"), "kernel name"),
        (with_kernel(name="k" * 513), "kernel name"),
        (with_kernel(module=1), "module"),
        (with_kernel(threads=0), "threads"),
        (with_kernel(threads=1025), "threads"),
        (with_kernel(shared_bytes=-1), "shared bytes"),
        (with_kernel(words=4), "word count"),
        (with_kernel(checks=256), "kernel checks"),
        (with_launch(kernel=3), "kernel"),
        (with_launch(words_region=0), "words region"),
        (with_launch(first_check=None), "first check"),
        (with_launch(first_check=1), "first check"),
        (with_launch(words=second.words[:5]), "word count"),
        (with_words(Input(1)), "input"),
        (with_words(Output(-1)), "output"),
        (with_words(InRegion(5)), "region"),
        (replace(table, kernels=no_barrier), "barrier word"),
        (replace(table, kernels=no_checks), "first check"),
        (
            replace(
                with_launch(first_check=None),
                kernels=no_checks,
            ),
            "word of checks",
        ),
        (replace(table, launches=(first, second, replace(third, words_region=None))), "words reg"),
        (with_words(Value(index.floor_divide(Variable("rows"), 1) - 2**62)), "ok"),
    ]
    answers = decode([write(one) for one, _ in cases])
    for (_, why), answer in zip(cases, answers, strict=True):
        assert why in answer, answer
    assert answers[-1] == "ok 3 3"


def test_every_word_of_a_table_may_be_any_number(decode: Decode) -> None:
    """Each word replaced by numbers at the edges: refused or taken, and never read beyond."""
    header_and_launches = [*range(min(WORDS, 220)), *range(WORDS - 40, WORDS)]
    values = (-(2**63), -1, 0, 1, 7, 2**31, 2**62, 2**63 - 1)
    tables = [damaged(at, value) for at in header_and_launches for value in values]
    answers = decode(tables)
    assert len(answers) == len(tables)
    assert sum(not answer.startswith("ok") for answer in answers) > len(tables) // 3


@pytest.mark.slow
def test_any_bytes_are_read_safely(decode: Decode) -> None:
    """Fuzzed: words and bytes replaced, cut, repeated, behind a checksum that fits."""
    tables: list[bytes] = []
    position = st.integers(0, len(GOOD) - 1)
    change = st.one_of(
        st.tuples(st.just("word"), st.integers(0, WORDS - 1), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just("small"), st.integers(0, WORDS - 1), st.integers(-2, 40)),
        st.tuples(st.just("byte"), position, st.integers(0, 255)),
        st.tuples(st.just("cut"), position, st.integers(1, 64)),
        st.tuples(st.just("copy"), position, st.integers(8, 256)),
    )

    @settings(max_examples=1500, database=None)
    @given(st.lists(change, min_size=1, max_size=6))
    def collect(changes: list[tuple[str, int, int]]) -> None:
        data = GOOD
        for kind, at, value in changes:
            if kind in ("word", "small"):
                data = data[: 32 + 8 * at] + struct.pack("<q", value) + data[40 + 8 * at :]
            elif kind == "byte":
                data = data[:at] + bytes([value]) + data[at + 1 :]
            elif kind == "cut":
                data = data[:at] + data[at + value :]
            else:
                data = data[:at] + data[at : at + value] + data[at:]
        sized = data[:16] + struct.pack("<Q", len(data)) + data[24:] if len(data) >= 32 else data
        tables.append(with_checksum(sized))

    collect()
    answers = decode(tables)
    assert len(answers) == len(tables)
    assert 0 < sum(answer.startswith("ok") for answer in answers) < len(answers)


def test_a_cubins_sections_must_lie_within_it(decode: Decode) -> None:
    """The driver is given no length: what it follows is looked at before."""
    good = fake_cubin({"scale": FakeKernel(3)})
    start = struct.unpack_from("<Q", good, 0x28)[0]
    wrong = [
        good[:63],
        good[:-1],
        good[:18] + b"\x3e\0" + good[20:],
        good[:0x28] + struct.pack("<Q", 2**63) + good[0x30:],
        good[:0x3C] + struct.pack("<H", 0) + good[0x3E:],
        good[:0x3E] + struct.pack("<H", 9) + good[0x40:],
        good[: start + 64 + 0x20] + struct.pack("<Q", len(good)) + good[start + 64 + 0x28 :],
    ]
    tables = [replace(one_kernel(), modules=((Cubin("sm_90", one),),)) for one in (good, *wrong)]
    answers = decode([write(one) for one in tables])
    assert answers[0] == "ok 1 1"
    assert all(answer.startswith("no cubin") for answer in answers[1:])


# ---- from kernels ------------------------------------------------------------------------------
def test_words_follow_the_abi() -> None:
    """Inputs, outputs, symbols; then scratch and barrier, which a kernel of two phases needs."""
    rows = Variable("n")
    launches = (
        CudaLaunch(column_sum(), (Input(0),), (Temporary(0),), 0, 256, 160, {"B": rows * 2}),
        CudaLaunch(softmax(1, 40), (Temporary(0),), (Output(0),), 0, 128, 160),
    )
    table = launch_table(launches, [cubins("sm_90")], ("n",), 1, 1, 12000)
    first, second = table.launches
    assert first.words == (Input(0), InRegion(0), Value(rows * 2), InRegion(1), BarrierWord())
    assert second.words == (InRegion(0), Output(0))
    bindings = {"n": 21}
    assert index.evaluate(first.grid, bindings) == 6, "two parts of eight rows a task would be five"
    assert index.evaluate(table.inputs[0], bindings) == 42 * 40 * 4
    assert table.outputs == (160,)
    assert [(k.cooperative, k.capped, k.words) for k in table.kernels] == [
        (True, True, 5),
        (False, False, 2),
    ]
    sizes = [index.evaluate(region.bytes, bindings) for region in table.regions]
    assert sizes == [160, 6 * 160, 8] and table.barrier_region == 2
    assert CheckRanges() not in first.words and table.checks_region is None


def test_tasks_of_warps_share_blocks() -> None:
    """A block of 256 threads has eight of them at once: a block each would leave seven idle."""
    kernel = softmax(100, 40, rows_a_task=1)
    [section] = kernel.phases[0].sections
    section = replace(section, scope=Scope.WARP)
    kernel = replace(kernel, phases=(Phase((section, section)),))
    assert grid(kernel) == 2 * 13
    assert grid(replace(kernel, threads=128)) == 2 * 25
    unknown = replace(section, tasks=Variable("n"))
    symbolic = grid(replace(kernel, phases=(Phase((unknown,)),)))
    assert [index.evaluate(symbolic, {"n": n}) for n in (-3, 0, 1, 8, 9)] == [0, 0, 1, 1, 2]


def test_a_buffer_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="column_sum: 2 buffers, 1 places"):
        launch_table([CudaLaunch(column_sum(), (Input(0),), (), 0, 1, 0)], [], ("B",), 1, 0, 12000)


sizes = st.one_of(st.integers(0, 5000), st.builds(lambda k: Variable("n") * k, st.integers(1, 40)))
lives = st.builds(
    lambda size, a, b: Lifetime(size, min(a, b), max(a, b)),
    sizes,
    st.integers(0, 12),
    st.integers(0, 12),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(lives, max_size=12), st.integers(0, 500))
def test_memory_that_is_used_at_once_never_overlaps(found: list[Lifetime], n: int) -> None:
    offsets, size = plan_arena(found)
    end = index.evaluate(size, {"n": n})
    spans = []
    for offset, life in zip(offsets, found, strict=True):
        start = index.evaluate(offset, {"n": n})
        stop = start + index.evaluate(life.bytes, {"n": n})
        assert start % 256 == 0 and stop <= end
        spans.append((start, stop, life))
    for i, (start, stop, life) in enumerate(spans):
        for other_start, other_stop, other in spans[:i]:
            together = life.first <= other.last and other.first <= life.last
            assert not together or stop <= other_start or other_stop <= start
    alone = sum(-(-index.evaluate(one.bytes, {"n": n}) // 256) * 256 for one in found)
    assert end <= alone


def test_memory_is_used_again() -> None:
    """A chain of equal temporaries needs two of them, of whatever length, sizes known or not."""
    for size in (1000, Variable("n") * 16):
        chain = [Lifetime(size, step, step + 1) for step in range(20)]
        _, arena = plan_arena(chain)
        assert index.evaluate(arena, {"n": 64}) == 2048


@pytest.mark.parametrize(("last", "shared"), [(4, True), (5, False)])
def test_work_between_launches_keeps_memory_alive(last: int, shared: bool) -> None:
    """A temporary that a library call still reads at the moment of the next launch."""
    launches = [
        CudaLaunch(softmax(4, 64), (Input(0),), (Temporary(n),), 0, 128, 0) for n in range(2)
    ]
    live = {Temporary(0): Lifetime(1024, 3, last), Temporary(7): Lifetime(64, 9, 9)}
    schedule = LaunchSchedule((3, 5), live)
    table = launch_table(launches, [[]], (), 1, 1, 12000, schedule)
    numbers = temporaries(launches, schedule)
    assert list(numbers) == [Temporary(0), Temporary(1), Temporary(7)]
    first, second, third = (table.regions[numbers[Temporary(n)]] for n in (0, 1, 7))
    assert (first.offset == second.offset) is shared
    assert third.bytes == 64 and table.arena == (1024 if shared else 2048)


def test_regions_are_where_the_library_finds_them(standin: Standin, cuda: CudaLibrary) -> None:
    table = whole()
    program = cuda.load(write(table))
    for rows in (0, 1, 77):
        bindings = {"rows": rows}
        assert program.arena_bytes([rows]) == index.evaluate(table.arena, bindings)
        for number, region in enumerate(table.regions):
            expected = tuple(index.evaluate(v, bindings) for v in (region.offset, region.bytes))
            assert program.region(number, [rows]) == expected
    program.unload()
    odd = replace(table, regions=(Region(8, 8), Region(0, 2**40), *table.regions[2:]))
    program = cuda.load(write(odd))
    for number, words in ((0, "not aligned"), (1, "outside the arena"), (5, "no region 5")):
        with pytest.raises(Exception, match=words):
            program.region(number, [1])
    program.unload()


def test_the_oldest_driver_is_that_of_the_compiler() -> None:
    """Cubins of NVRTC 13 load on no driver for CUDA 12, those of 12 on all from 12.0 on."""
    assert [driver_of(version) for version in ("11.8", "12.9", "13.0")] == [12000, 12000, 13000]
