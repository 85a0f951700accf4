"""Random bits by integer arithmetic are those of XLA:CPU, of the published test vectors and of the
evaluation, in the interpreter, as C and, on the emulator, as CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.expand import expand
from tests.emulator import kernels
from tests.emulator.program import compile_text
from tests.emulator.twins import DEVICE as GPU
from tests.hlo import xla
from tests.schedule.agree import check, collapsed
from tests.schedule.modules import whole

STATE = np.array([123456789012345678, 2**64 - 2, 77], np.uint64)
"""The counter's low word is about to wrap."""

BITS = ["u32[5]", "u32[4,6]", "u32[3,5]", "u32[]", "s32[7,4]", "u64[5]", "s64[4,6]", "u8[11]"]
CASES = [(algorithm, bits) for algorithm in ("rng_philox", "rng_three_fry") for bits in BITS]


def text(algorithm: str, bits: str) -> str:
    words = 2 if algorithm == "rng_three_fry" else 3
    return (
        f"HloModule m\n\nENTRY e {{\n  s = u64[{words}] parameter(0)\n"
        f"  r = (u64[{words}], {bits}) rng-bit-generator(s), algorithm={algorithm}\n"
        f"  a = u64[{words}] get-tuple-element(r), index=0\n"
        f"  b = {bits} get-tuple-element(r), index=1\n"
        f"  ROOT t = (u64[{words}], {bits}) tuple(a, b)\n}}\n"
    )


def expanded(algorithm: str, bits: str) -> tuple[Module, Any]:
    module = expand(parse(text(algorithm, bits))).module
    opcodes = {node.opcode for node in topological((module.entry.root,))}
    assert op.RNG_BIT_GENERATOR not in opcodes
    return module, STATE[: module.entry.parameters[0].shape.static[0]]


@pytest.mark.parametrize(("algorithm", "bits"), CASES)
def test_bits_are_those_of_the_evaluation_also_in_kernels(algorithm: str, bits: str) -> None:
    """`check` compares the kernel with the expanded module: interpreted here; compiled below."""
    module, state = expanded(algorithm, bits)
    wanted = evaluate(parse(text(algorithm, bits)), [state])
    for ours, theirs in zip(evaluate(module, [state]), wanted, strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    check(whole(module), module, [state], device=GPU)


@pytest.mark.parametrize(("algorithm", "bits"), [CASES[1], CASES[-2], ("rng_default", "u32[9]")])
def test_kernels_on_both_processors_draw_what_xla_draws(algorithm: str, bits: str) -> None:
    module, state = expanded(algorithm, bits)
    client = xla.client()
    theirs = xla.run(client, text(algorithm.replace("default", "philox"), bits), [state])
    pattern = whole(module)
    check(pattern, module, [state], compiled=True)
    kernel = check(pattern, module, [state], device=GPU)
    program = compile_text(kernels.rendered([kernel]))
    outputs = kernels.run(kernel, program, collapsed(kernel, [state], {}), {})
    assert not outputs.findings
    for ours, wanted in zip(outputs.outputs, theirs, strict=True):
        assert np.array_equal(ours.reshape(wanted.shape).view(wanted.dtype), wanted)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (0, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, (2**64 - 1, 2**64 - 1), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_words(
    key: int, counter: tuple[int, int], words: tuple[int, ...]
) -> None:
    """Known answers of Random123 1.09 (kat_vectors, philox4x32 with 10 rounds)."""
    module, _ = expanded("rng_philox", "u32[4]")
    state, drawn = evaluate(module, [np.array([key, *counter], np.uint64)])
    assert tuple(map(int, drawn)) == words
    total = (counter[0] | counter[1] << 64) + 1
    assert state.tolist() == [key, total % 2**64, (total >> 64) % 2**64]


@pytest.mark.parametrize(
    "line",
    [
        "(u64[2], u32[4]) rng-bit-generator(s), algorithm=rng_philox",
        "(u64[2], f32[4]) rng-bit-generator(s), algorithm=rng_three_fry",
    ],
)
def test_what_has_no_specified_bits_stays(line: str) -> None:
    module = parse(f"HloModule m\n\nENTRY e {{\n  s = u64[2] parameter(0)\n  ROOT r = {line}\n}}\n")
    opcodes = [node.opcode for node in topological((expand(module).module.entry.root,))]
    assert op.RNG_BIT_GENERATOR in opcodes
