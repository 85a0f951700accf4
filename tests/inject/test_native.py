"""The plug-in's parts on their own: launch tables, signatures, pool, kernels, step schedule."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.inject import plugin, reasons
from stitchcore.loop_ir import index
from tests.inject.conftest import Compile
from tests.inject.jobs import ROOT

Driver = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def driver(compiled: Compile) -> Driver:
    checks = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    target = compiled("launch_driver", ("expression.cc", "launch.cc"), *checks)

    def run(lines: list[str]) -> list[str]:
        done = subprocess.run(
            [target], input="\n".join(lines) + "\n", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def line(inputs: int, outputs: int, symbols: list[int], words: list[int]) -> str:
    return " ".join(map(str, [inputs, outputs, *symbols, ";", *words]))


SYMBOLS = ("b", "s")


def expressions() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.integers(0, 1000), st.sampled_from([index.Variable(name) for name in SYMBOLS])
    )

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        divisor = st.integers(1, 64)
        return st.one_of(
            st.builds(index.add, inner, inner),
            st.builds(index.multiply, inner, st.integers(0, 50)),
            st.builds(index.floor_divide, inner, divisor),
            st.builds(index.modulo, inner, divisor),
            st.builds(index.minimum, inner, inner),
            st.builds(index.maximum, inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=8)


def table(scratch: Any, tasks: list[Any], dims: list[Any]) -> list[int]:
    words = [1, 2, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, len(dims)]
    for dim in dims:
        words += index.postfix(dim, SYMBOLS)
    words += [0, 0, *index.postfix(scratch, SYMBOLS), len(tasks)]
    for task in tasks:
        words += index.postfix(task, SYMBOLS)
    return words


@pytest.mark.slow
def test_programs_mean_what_the_compiler_means(driver: Driver) -> None:
    cases: list[tuple[str, str]] = []

    @settings(max_examples=300, database=None)
    @given(expressions(), expressions(), expressions(), st.integers(0, 99), st.integers(1, 99))
    def collect(scratch: Any, task: Any, dim: Any, b: int, s: int) -> None:
        bindings = {"b": b, "s": s}
        values = [index.evaluate(one, bindings) for one in (scratch, task, dim)]
        words = table(scratch, [task], [dim])
        cases.append((line(1, 1, [b, s], words), " ".join(map(str, values))))

    collect()
    answers = driver([given_line for given_line, _ in cases])
    assert answers == [expected for _, expected in cases]


GOOD = table(0, [4], [3, index.Variable("b")])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([2, *GOOD[1:]], "version"),
        (GOOD[:-1], "ends early"),
        ([*GOOD, 0], "left over"),
        ([1, 1, 5, 0, 1, 0], "op input"),
        ([1, 0, 1, 2, 0], "operand kind"),
        ([1, 0, 0, 1, 0, 3], "result position"),
        ([1, 0, 0, 2, 0, 0, 0, 0, 0, 0], "produced twice"),
        ([1, 0, 0, 0, 0, 0, 2, 0, 0, 0], "not produced"),
        ([1, 0, 0, 0, 1, 0, 0], "alias operand"),
        ([1, 0, 0, 0, 0, 0, 2, 2, 0, 0], "program stack"),
        ([1, 0, 0, 0, 0, 0, 2, 1, 0, 0], "symbol number"),
        ([1, 0, 0, 0, 0, 0, 6, 0, 1, 0, 0, 4, 0, 0], "program value"),
        ([1, -1], "entry count"),
        ([], "ends early"),
    ],
)
def test_bad_tables_are_refused(driver: Driver, words: list[int], why: str) -> None:
    (answer,) = driver([line(1, 1, [1, 1], words)])
    assert answer.startswith("error") and why in answer


def test_overflow_has_no_value(driver: Driver) -> None:
    huge = index.multiply(index.multiply(index.Variable("b"), 2**40), index.Variable("b"))
    (answer,) = driver([line(1, 1, [2**20, 1], table(huge, [1], []))])
    assert answer == "bad 1"


def test_random_tables_never_crash(driver: Driver) -> None:
    """Sanitizers are on: any bad read ends the driver."""
    shuffle = random.Random(0)
    lines = []
    for _ in range(3000):
        words = list(GOOD)
        for _ in range(shuffle.randint(1, 4)):
            place = shuffle.randrange(len(words))
            words[place] = shuffle.choice([-1, 0, 1, 2, 3, 7, 2**40, -(2**63), 2**63 - 1])
        lines.append(line(1, 1, [3, 4], words[: shuffle.randint(1, len(words))]))
    assert len(driver(lines)) == len(lines)


# RFC 8032 section 7.1: (public key, message, signature)
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_signatures(library: plugin.Plugin, public: str, message: str, signature: str) -> None:
    key, text, sign = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature)
    assert library.verify(sign, text, key)
    assert not library.verify(sign, text + b"x", key)
    for place in (0, 31, 32, 63):
        bad = bytearray(sign)
        bad[place] ^= 1
        assert not library.verify(bytes(bad), text, key)
    # s + L is the same residue: accepting it would make signatures malleable.
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(sign[32:], "little") + order
    assert not library.verify(sign[:32] + s.to_bytes(32, "little"), text, key)
    assert not library.verify(sign[:-1], text, key) and not library.verify(sign, text, key[:-1])
    assert not library.verify(sign, text, bytes(32))


def test_libraries_come_from_bytes(library: plugin.Plugin, tmp_path: Path) -> None:
    source = tmp_path / "k.c"
    source.write_text("long one(void) { return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "k.so"], check=True)
    data = (tmp_path / "k.so").read_bytes()
    handle = library.load_library(data)
    library.register_kernel("key", handle, "one")
    with pytest.raises(reasons.Refused, match="no function"):
        library.register_kernel("key", handle, "two")
    with pytest.raises(reasons.Refused):
        library.load_library(data[: len(data) // 3])


def test_impossible_fusions_are_found_before_they_are_made(library: plugin.Plugin) -> None:
    table = [1, 0, 1, 0, 0, 1, 0, 0, 1, 2, 0, 4, 0, 0, 2, 0, 0, 1, 2, 0, 1]
    assert library.check_fusion(table, [1], [], [1], False) == ""
    assert "word" in library.check_fusion(table[:-1], [1], [], [1], False)
    assert library.check_fusion(table, [20], [], [1], False) == "operand kind"


@pytest.mark.slow
def test_an_update_needs_the_shim(native: Path) -> None:
    """In a process that has loaded none."""
    pytest.importorskip("tensorflow")
    table = [1, 0, 1, 1, 0, 1, 1, 0, 1, 2, 0, 4, 0, 0, 2, 0, 0, 1, 2, 0, 1]
    program = (
        "import tensorflow; from stitchcore.inject import plugin; "
        f"library = plugin.Plugin(plugin.open_native({str(native)!r})); "
        f"print(library.check_fusion({table}, [20], [], [], False))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "variables need the shim", done.stderr


def test_a_kernel_on_a_gpu_reads_no_host_memory(library: plugin.Plugin) -> None:
    table = [1, 0, 1, 0, 0, 1, 0, 0, 1, 2, 0, 4, 0, 0, 2, 0, 0, 1, 2, 0, 1]
    assert library.check_fusion(table, [1], [3], [1], True) == ""  # an input that it does not read
    assert library.check_fusion(table, [], [1], [1], False) == ""
    assert library.check_fusion(table, [], [1], [1], True) == "a kernel on a GPU reads host memory"


def test_another_plug_in_that_optimizes_graphs_is_left_alone(tmp_path: Path) -> None:
    """TensorFlow ends a process in which two do so for one type of device."""
    source, theirs = tmp_path / "theirs.c", tmp_path / "theirs.so"
    source.write_text("void TF_InitGraph(void *given, void *status) {}")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(theirs)], check=True)
    code = f"""
import ctypes
from stitchcore.inject import plugin
print(plugin.other_optimizer())
ctypes.CDLL({str(theirs)!r})
print(plugin.other_optimizer())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout.split() == ["None", str(theirs)]


def test_unknown_version_is_refused(native: Path) -> None:
    with pytest.raises(reasons.Refused) as caught:
        plugin.load(str(native), (2, 14))
    assert caught.value.reason == reasons.UNSUPPORTED_VERSION
