"""From HLO text to kernels that compute the same: on real modules, checked and mutated."""

from __future__ import annotations

import dataclasses
import lzma
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stitchcore.compiler import pipeline, stages
from stitchcore.compiler.module import CompiledModule
from stitchcore.compiler.regions import compile_regions
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState, compile_module
from stitchcore.device.host import host_device
from stitchcore.fusion.extents import extent
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.runtime.module import bind, load, run_kernel, run_module
from stitchcore.toolchain.c_compiler import CompiledLibrary, compile_c
from stitchcore.verify.inputs import arguments, capture
from stitchcore.verify.kernel import check_kernel
from tests import tiers

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
Array = np.ndarray[Any, np.dtype[Any]]


def workload(name: str) -> Module:
    path = WORKLOADS / f"{name}.hlo.xz"
    if not path.exists():
        pytest.skip(f"{path} is missing: copy the workload modules there")
    with lzma.open(path, "rt") as file:
        return parse(file.read())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompiledModule]:
    cache = tmp_path_factory.mktemp("cache")
    names = ("softmax_grad", "layernorm_gelu_grad", "mlp_nodrop_train", "transformer_dec_step")
    options = BuildOptions(cache=cache)
    return {name: compile_module(workload(name), host_device(), options) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernels"), [("softmax_grad", 1), ("layernorm_gelu_grad", 1), ("mlp_nodrop_train", 8)]
)
def test_kernel_counts_are_pinned(
    built: dict[str, CompiledModule], name: str, kernels: int
) -> None:
    """With matrix products outside kernels: their prices are the machine's."""
    options = BuildOptions(mechanisms=ALL - {Mechanism.GEMM})
    plan = pipeline.run(PLANNED, ModuleState(workload(name), host_device(), options)).plan
    assert plan is not None and len(plan.patterns) == kernels
    assert len(built[name].plan.patterns) <= kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["softmax_grad", "layernorm_gelu_grad", "mlp_nodrop_train", "transformer_dec_step"]
)
def test_every_kernel_is_right(built: dict[str, CompiledModule], name: str) -> None:
    made = built[name]
    loaded = load(made)
    first = {number: position for position, number in reversed(list(enumerate(made.of)))}
    assert len(first) == len(made.kernels)
    for number, position in first.items():
        pattern = made.plan.patterns[position]

        def run(
            given: Sequence[Array], pattern: Pattern = pattern, number: int = number
        ) -> Sequence[Array]:
            return run_kernel(loaded[number], pattern, given, {})

        check = check_kernel(pattern, made.module, run, {})
        assert check.passed, str(check)
        assert check.informative, str(check)


@pytest.mark.slow
def test_equal_layers_share_kernels(built: dict[str, CompiledModule]) -> None:
    made = built["transformer_dec_step"]
    assert len(made.kernels) < len(made.plan.patterns) / 2


@pytest.mark.parametrize("name", ["softmax_grad", "layernorm_gelu_grad", "mlp_nodrop_train"])
def test_a_whole_module_computes_what_numpy_does(
    built: dict[str, CompiledModule], name: str
) -> None:
    module = workload(name)
    given = arguments(module.entry.parameters, {}, 3, "positive")
    expected = evaluate(module, given, {}, "float64")
    for got, want in zip(run_module(built[name], given), expected, strict=True):
        scale = float(np.sqrt(np.mean(np.square(want)))) + 1e-30
        assert np.max(np.abs(got - want)) <= 1e-4 * scale


def test_kernels_are_right_on_captured_inputs(built: dict[str, CompiledModule]) -> None:
    """Inputs as a run of the whole step makes them, not drawn kernel by kernel."""
    made = built["mlp_nodrop_train"]
    given = arguments(made.module.entry.parameters, {}, 5, "small")
    values = capture(made.module, given, made.plan.patterns)
    loaded = load(made)
    for number, pattern in enumerate(made.plan.patterns):
        captured = [values[value] for value in pattern.inputs]
        kernel = loaded[made.of[number]]
        check = check_kernel(pattern, made.module, partial(running, kernel, pattern), {}, captured)
        assert check.data == "captured"
        assert check.passed, str(check)


def mutated(pattern: Pattern, old: Instruction, opcode: str) -> Pattern:
    """`pattern` with one binary instruction's opcode changed, and all that follows rebuilt."""
    made: dict[Instruction, Instruction] = {}
    for node in pattern.instructions:
        operands = tuple(made.get(operand, operand) for operand in node.operands)
        chosen = opcode if node is old else node.opcode
        made[node] = instruction(chosen, node.shape, operands, **dict(node.attributes))
    return Pattern(
        tuple(made.values()), pattern.inputs, tuple(made[value] for value in pattern.outputs)
    )


@pytest.mark.slow
def test_a_kernel_of_another_pattern_fails_the_check(built: dict[str, CompiledModule]) -> None:
    """The judge must notice any one multiplication that is really an addition."""
    made = built["layernorm_gelu_grad"]
    kernel, pattern = load(made)[0], made.plan.patterns[0]
    products = [node for node in pattern.instructions if node.opcode == opcodes.MULTIPLY]
    noticed = 0
    for old in products[:12]:
        changed = mutated(pattern, old, opcodes.ADD)
        if len(set(changed.instructions)) < len(pattern.instructions):
            continue
        check = check_kernel(
            changed, made.module, lambda given: run_kernel(kernel, pattern, given, {}), {}
        )
        assert not check.passed
        noticed += 1
    assert noticed >= 8


def test_symbols_are_bound_from_shapes() -> None:
    text = (
        "HloModule m, symbols={B}\n\nENTRY main {\n"
        "  a = f32[B,8] parameter(0)\n  b = f32[B,8] parameter(1)\n"
        "  c = f32[B,8] add(a, b)\n  ROOT d = f32[B,8] multiply(c, a)\n}\n"
    )
    module = parse(text)
    made = compile_module(module, host_device())
    for size in (1, 3, 64):
        a, b = np.full((size, 8), 2.0, np.float32), np.full((size, 8), 3.0, np.float32)
        assert bind(module, [a, b]) == {"B": size}
        assert np.array_equal(run_module(made, [a, b])[0], np.full((size, 8), 10.0, np.float32))
    with pytest.raises(ValueError, match="B is 3 and 4"):
        bind(module, [np.ones((3, 8), np.float32), np.ones((4, 8), np.float32)])


def test_kernels_of_equal_patterns_depend_on_the_same_sizes() -> None:
    """One kernel for both, though only one of the modules has an unknown size elsewhere."""
    known = (
        "HloModule m{}\n\nENTRY main {{\n  a = f32[] parameter(0)\n  n = f32[] negate(a)\n"
        "  e = f32[] exponential(n)\n  b = f32[{},8] parameter(1)\n"
        "  t = f32[{},8] tanh(b)\n  ROOT r = (f32[], f32[{},8]) tuple(e, t)\n}}\n"
    )
    modules = {
        "unknown": parse(known.format(", symbols={B}", *"BBB")),
        "known": parse(known.format("", *"777")),
    }
    made = compile_regions(modules, host_device(), BuildOptions(planner="single"))
    keys = {name: set(region.keys) for name, region in made.regions.items()}
    assert len(keys["known"] & keys["unknown"]) == 1
    for name, module in modules.items():
        used = {symbol for key in keys[name] for symbol in made.kernels[key].kernel.symbols}
        assert used == set(module.symbols)


def test_an_empty_module_compiles() -> None:
    value = instruction(opcodes.PARAMETER, parse_shape(), number=0)
    made = compile_module(Module("m", computation([value], value)), host_device())
    given = np.ones((2,), np.float32)
    assert run_module(made, [given])[0] is given
    assert dataclasses.asdict(made.plan.planned)["launches"] == 0


def parse_shape() -> Any:
    from stitchcore.hlo.ir.shape import Shape

    return Shape("f32", (2,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    tiers.nightly_but(
        "lstm_lm_train", "mlp_train", of=["dien_train", "lstm_lm_train", "asr_train", "mlp_train"]
    ),
)
def test_every_kernel_of_a_training_step_is_right(name: str) -> None:
    """The larger modules run by `python -m bench.workload_kernels` (minutes)."""
    made = compile_module(workload(name), host_device())
    loaded = load(made)
    checked = 0
    for number, (plan, pattern) in enumerate(made.uses()):
        if max(extent(node.shape.size) for node in pattern.instructions) > 4_000_000:
            continue
        check = check_kernel(pattern, plan.module, partial(running, loaded[number], pattern), {})
        assert check.passed, f"kernel {number}: {check}"
        checked += 1
    assert checked >= len(made.kernels) * 0.75  # the others' values are too large for CI


def running(kernel: CpuKernel, pattern: Pattern, given: Sequence[Array]) -> Sequence[Array]:
    return run_kernel(kernel, pattern, given, {})


@pytest.mark.slow
def test_kernels_compiled_elsewhere_are_one_by_one_and_nameless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each source is a function of its kernel alone; what comes from there is used as it is, and
    what does not is compiled here."""
    asked: list[list[str]] = []

    def elsewhere(sources: Sequence[str]) -> list[CompiledLibrary | None]:
        asked.append(list(sources))
        first = compile_c(sources[0], host_device())
        return [first, *[None] * (len(sources) - 1)]

    module = workload("mlp_nodrop_train")
    options = BuildOptions(remote_compile=elsewhere)
    made = compile_module(module, host_device(), options)
    sources = [unit.source for unit in made.units]
    assert sources == asked[0] and len(sources) == len(made.kernels) > 1
    named = {name for names in module.provenance.values() for name in names}
    assert any(
        name in unit.source
        for name in named
        for unit in compile_module(module, host_device(), BuildOptions()).units
    )
    assert all(
        "/* " + entry.kernel.name + ": no provenance given */" in source
        for entry, source in zip(made.kernels, sources, strict=True)
    )
    monkeypatch.setattr(stages, "MOST_SHARED_UNITS", 3)
    assert len(compile_module(module, host_device(), options).units) == 3
    given = arguments(module.entry.parameters, {}, 0)
    here = run_module(compile_module(module, host_device()), given)
    for one, other in zip(run_module(made, given), here, strict=True):
        np.testing.assert_array_equal(one, other)
