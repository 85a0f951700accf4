"""Library instructions over an array module against the oracle's own code (hlo/evaluate*.py)."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stitchcore.runtime.gpu
from stitchcore.errors import Refused
from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction, topological
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.gpu.library import cublas, dispatch, sort
from stitchcore.runtime.gpu.library.gemm import gemm
from stitchcore.runtime.gpu.trip_count import MOST_TRIPS, trip_count
from tests.launch.standin_cuda import standin_library
from tests.runtime.host import HostDevice
from tests.runtime.whole import leaves

FOLDER = Path(stitchcore.runtime.gpu.__file__).parent


def computed(node: Instruction, operands: Sequence[Any]) -> list[Any]:
    """What the library puts into results, which start as garbage."""
    dispatch.require(node)
    assert dispatch.refused(node) is None
    device = HostDevice.__new__(HostDevice)  # no memory of it, no stream: only its library
    expected = leaves([apply(node, list(operands))])
    results = [np.full(one.shape, 77, one.dtype) for one in expected]
    dispatch.compute(device, node, list(operands), results)
    return results


def agree(node: Instruction, operands: Sequence[Any], tolerance: float = 1e-6) -> None:
    expected = leaves([apply(node, list(operands))])
    for made, right in zip(computed(node, operands), expected, strict=True):
        assert made.dtype == right.dtype
        np.testing.assert_allclose(made, right, rtol=tolerance, atol=tolerance)


# ---- products ------------------------------------------------------------------------------------
@st.composite
def dots(draw: st.DrawFn) -> Instruction:
    """Any order of batch, free and summed dimensions, extents of 1 among them."""
    extents = st.integers(1, 3)
    batch, summed = (draw(st.lists(extents, max_size=2)) for _ in range(2))
    sides, numbers = [], []
    for name in ("lhs", "rhs"):
        free = draw(st.lists(extents, max_size=2))
        kinds = [*((0, i) for i in range(len(batch))), *((1, i) for i in range(len(summed)))]
        order = draw(st.permutations([*kinds, *((2, i) for i in range(len(free)))]))
        sizes = (batch, summed, free)
        dims = tuple(sizes[kind][i] for kind, i in order)
        numbers.append(
            {
                f"{name}_batch_dims": tuple(order.index((0, i)) for i in range(len(batch))),
                f"{name}_contracting_dims": tuple(order.index((1, i)) for i in range(len(summed))),
            }
        )
        sides.append(
            (instruction(op.PARAMETER, Shape("f32", dims), number=len(sides)), free, order)
        )
    frees = [
        [sizes for kind, i in order if kind == 2 for sizes in [free[i]]] for _, free, order in sides
    ]
    shape = Shape("f32", (*batch, *frees[0], *frees[1]))
    operands = [side for side, _, _ in sides]
    return instruction(op.DOT, shape, operands, **numbers[0], **numbers[1])


@given(dots())
@settings(max_examples=300)
def test_any_dot_is_one_product_by_strides(node: Instruction) -> None:
    """The host's product reads by strides alone, and asserts that it stays inside."""
    random = np.random.default_rng(0)
    agree(node, [random.standard_normal(o.shape.static, np.float32) for o in node.operands], 1e-5)


def test_a_transposed_operand_is_not_copied() -> None:
    """A gradient's dot sums over the first dimension of both: strides say so."""
    x = instruction(op.PARAMETER, Shape("f32", (256, 64)), number=0)
    y = instruction(op.PARAMETER, Shape("f32", (256, 32)), number=1)
    numbers = {"lhs_contracting_dims": (0,), "rhs_contracting_dims": (0,)}
    found = gemm(instruction(op.DOT, Shape("f32", (64, 32)), (x, y), **numbers))
    assert (found.left.row, found.left.column, found.left.order) == (1, 64, None)
    assert (found.right.row, found.right.column, found.right.order) == (32, 1, None)
    assert (found.batch, found.m, found.n, found.k) == (1, 64, 32, 256)
    assert found.reduced


def test_heads_between_rows_and_columns_are_copied_into_order() -> None:
    """[batch, row, head, column] by batch and head: no one stride leads from matrix to matrix."""
    dims = (2, 5, 3, 4)
    x = instruction(op.PARAMETER, Shape("f32", dims), number=0)
    numbers = {"lhs_batch_dims": (0, 2), "rhs_batch_dims": (0, 2)}
    numbers |= {"lhs_contracting_dims": (3,), "rhs_contracting_dims": (3,)}
    node = instruction(op.DOT, Shape("f32", (2, 3, 5, 5)), (x, x), **numbers)
    assert gemm(node).left.order == (0, 2, 1, 3)
    agree(node, [np.random.default_rng(0).standard_normal(dims, np.float32)] * 2, 1e-5)


# ---- movement by data, windows, random bits --------------------------------------------------
def entry(text: str) -> Instruction:
    return parse(text).entry.root


def main(signature: str, *lines: str, before: str = "") -> Instruction:
    """The root of an entry whose parameters are `signature`'s, one a line."""
    parameters = [part.strip().split(": ") for part in signature.split(";")]
    body = [f"  {name} = {kind} parameter({n})" for n, (name, kind) in enumerate(parameters)]
    head = ", ".join(f"{name}: {kind}" for name, kind in parameters)
    result = lines[-1].split(" = ")[1].split(" ")[0]
    if result.startswith("("):
        result = lines[-1].split(" = ")[1].split(") ")[0] + ")"
    text = ["HloModule m", "", before, f"ENTRY main ({head}) -> {result} {{", *body, *lines, "}"]
    return entry("\n".join(text) + "\n")


ADD = """add (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] OPCODE(a, b)
}
"""


@pytest.mark.parametrize("opcode", ["add", "subtract"])
def test_scatter_drops_what_lies_outside(opcode: str) -> None:
    node = main(
        "x: f32[5,3]; i: s32[4]; u: f32[4,3]",
        "  ROOT r = f32[5,3] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
        before=ADD.replace("OPCODE", opcode),
    )
    random = np.random.default_rng(0)
    x, u = (random.standard_normal((n, 3), np.float32) for n in (5, 4))
    agree(node, [x, np.array([1, 5, 1, -1], np.int32), u])


def test_a_scatter_that_replaces() -> None:
    before = ADD.replace("ROOT c = f32[] OPCODE(a, b)", "ROOT c = f32[] copy(b)")
    node = main(
        "x: f32[5,3]; i: s32[2,2]; u: f32[2]",
        "  ROOT r = f32[5,3] scatter(x, i, u), update_window_dims={}, "
        "inserted_window_dims={0,1}, scatter_dims_to_operand_dims={1,0}, index_vector_dim=1, "
        "to_apply=add",
        before=before.replace("copy(b)", "parameter(1)").replace("  b = f32[] parameter(1)\n", ""),
    )
    indices = np.array([[2, 4], [0, 1]], np.int32)
    agree(node, [np.zeros((5, 3), np.float32), indices, np.array([7, 8], np.float32)])


@pytest.mark.parametrize("index", [[0, 0], [3, 1], [-5, 9]])
def test_dynamic_slices_are_clamped(index: list[int]) -> None:
    random = np.random.default_rng(0)
    x, u = random.standard_normal((6, 4), np.float32), random.standard_normal((2, 3), np.float32)
    starts = [np.asarray(one, np.int32) for one in index]
    cut = main(
        "x: f32[6,4]; i: s32[]; j: s32[]",
        "  ROOT r = f32[2,3] dynamic-slice(x, i, j), dynamic_slice_sizes={2,3}",
    )
    agree(cut, [x, *starts])
    put = main(
        "x: f32[6,4]; u: f32[2,3]; i: s32[]; j: s32[]",
        "  ROOT r = f32[6,4] dynamic-update-slice(x, u, i, j)",
    )
    agree(put, [x, u, *starts])


def test_an_update_in_place_leaves_the_rest() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    node = main(
        "x: f32[4,3]; u: f32[1,3]; i: s32[]; j: s32[]",
        "  ROOT r = f32[4,3] dynamic-update-slice(x, u, i, j)",
    )
    operands = [x, np.zeros((1, 3), np.float32), np.int32(2), np.int32(0)]
    operands[2:] = [np.asarray(one, np.int32) for one in operands[2:]]
    expected = apply(node, operands)
    dispatch.compute(HostDevice.__new__(HostDevice), node, operands, [x])
    assert (x == expected).all()


GATHERS = [
    ("x: f32[5,3]; i: s32[2,4]", "f32[2,4,3]", "{2}", "{0}", "{0}", 2, "{1,3}"),
    ("x: f32[5,3]; i: s32[4]", "f32[3,4]", "{0}", "{0}", "{0}", 1, "{1,3}"),
    ("x: f32[5,3]; i: s32[4]", "f32[4,2,3]", "{1,2}", "{}", "{0}", 1, "{2,3}"),
    ("x: f32[5,3]; i: s32[4,2]", "f32[4]", "{}", "{0,1}", "{1,0}", 1, "{1,1}"),
]


@pytest.mark.parametrize("case", GATHERS)
def test_gather_clamps_its_starts(case: tuple[Any, ...]) -> None:
    signature, result, offset, collapsed, start, vector, sizes = case
    node = main(
        signature,
        f"  ROOT r = {result} gather(x, i), offset_dims={offset}, "
        f"collapsed_slice_dims={collapsed}, start_index_map={start}, "
        f"index_vector_dim={vector}, slice_sizes={sizes}",
    )
    random = np.random.default_rng(1)
    indices = random.integers(-2, 8, node.operands[1].shape.static).astype(np.int32)
    agree(node, [random.standard_normal((5, 3), np.float32), indices])


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("dims", ["{0}", "{1}"])
def test_sorts_keep_equal_elements_in_order(direction: str, dims: str) -> None:
    before = (
        "less (a: s32[], b: s32[], c: f32[], d: f32[]) -> pred[] {\n  a = s32[] parameter(0)\n"
        "  b = s32[] parameter(1)\n  c = f32[] parameter(2)\n  d = f32[] parameter(3)\n"
        f"  ROOT less = pred[] compare(a, b), direction={direction}\n}}\n"
    )
    node = main(
        "x: s32[6,7]; y: f32[6,7]",
        f"  ROOT r = (s32[6,7], f32[6,7]) sort(x, y), dimensions={dims}, to_apply=less",
        before=before,
    )
    random = np.random.default_rng(0)
    keys = random.integers(0, 4, (6, 7)).astype(np.int32)
    agree(node, [keys, np.arange(42, dtype=np.float32).reshape(6, 7)])


COMPARATORS = {
    "select": "  ROOT r = pred[] select(same, later, first)",
    "or": "  both = pred[] and(same, later)\n  ROOT r = pred[] or(both, first)",
}


@pytest.mark.parametrize("form", sorted(COMPARATORS))
@pytest.mark.parametrize("most", [0, sort.MOST_PAIRS], ids=["sorted", "counted"])
def test_sorts_by_a_second_key_where_the_first_is_equal(
    form: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rises, the second falls: TensorFlow's unique compares rows like this."""
    monkeypatch.setattr(sort, "MOST_PAIRS", most)
    before = (
        "less (a: s32[], b: s32[], c: f32[], d: f32[]) -> pred[] {\n  a = s32[] parameter(0)\n"
        "  b = s32[] parameter(1)\n  c = f32[] parameter(2)\n  d = f32[] parameter(3)\n"
        "  same = pred[] compare(a, b), direction=EQ\n"
        "  later = pred[] compare(d, c), direction=LT\n"
        f"  first = pred[] compare(a, b), direction=LT\n{COMPARATORS[form]}\n}}\n"
    )
    node = main(
        "x: s32[9,3]; y: f32[9,3]",
        "  ROOT r = (s32[9,3], f32[9,3]) sort(x, y), dimensions={0}, to_apply=less",
        before=before,
    )
    assert sort.waits(node) == (most == 0)
    random = np.random.default_rng(3)
    keys = random.integers(-2, 2, (9, 3)).astype(np.int32)
    agree(node, [keys, random.integers(-2, 2, (9, 3)).astype(np.float32)])


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("kind", ["u8", "f16", "f64", "pred"])
def test_sorts_of_every_kind_of_number(direction: str, kind: str) -> None:
    """-0 and 0 are equal and keep their order; unsigned ones fall as they rise."""
    node = main(
        f"x: {kind}[8]; y: s32[8]",
        f"  ROOT r = ({kind}[8], s32[8]) sort(x, y), dimensions={{0}}, to_apply=less",
        before=(
            f"less (a: {kind}[], b: {kind}[], c: s32[], d: s32[]) -> pred[] {{\n"
            f"  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n"
            "  c = s32[] parameter(2)\n  d = s32[] parameter(3)\n"
            f"  ROOT less = pred[] compare(a, b), direction={direction}\n}}\n"
        ),
    )
    numbers = np.array([0.0, -0.0, 2, -3, 1, -0.0, 2, 250])
    keys = numbers.astype(DTYPES[kind].numpy) if kind != "u8" else np.abs(numbers).astype(np.uint8)
    agree(node, [keys, np.arange(8, dtype=np.int32)])


@pytest.mark.parametrize("opcode", ["add", "maximum", "minimum"])
@pytest.mark.parametrize(
    ("result", "window"),
    [
        ("f32[2,3,2]", "size=1x2x2 stride=1x2x2 pad=0_0x1_0x0_0"),
        ("f32[2,5,4]", "size=1x5x1 pad=0_0x4_0x0_0"),
        ("f32[2,5,4]", "size=1x5x1 pad=0_0x0_4x0_0"),
        ("f32[2,6,4]", "size=1x5x1 pad=0_0x5_0x0_0"),
        ("f32[2,6,4]", "size=1x5x1 pad=0_0x0_5x0_0"),
        ("f32[2,3,4]", "size=1x2x1 rhs_dilate=1x2x1"),
    ],
)
def test_windows(opcode: str, result: str, window: str) -> None:
    node = main(
        "x: f32[2,5,4]; i: f32[]",
        f"  ROOT r = {result} reduce-window(x, i), window={{{window}}}, to_apply=add",
        before=ADD.replace("OPCODE", opcode),
    )
    x = np.random.default_rng(0).standard_normal((2, 5, 4), np.float32)
    agree(node, [x, np.asarray(0.25, np.float32)], 1e-5)


def test_the_gradient_of_pooling() -> None:
    """Ties go to the first, and padding never wins against negative values."""
    before = (
        "ge (a: f32[], b: f32[]) -> pred[] {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT ge = pred[] compare(a, b), direction=GE\n}\n\n"
    )
    node = main(
        "x: f32[1,6,6]; s: f32[1,3,3]; i: f32[]",
        "  ROOT r = f32[1,6,6] select-and-scatter(x, s, i), "
        "window={size=1x3x3 stride=1x2x2 pad=0_0x0_1x0_1}, select=ge, scatter=add",
        before=before + ADD.replace("OPCODE", "add"),
    )
    random = np.random.default_rng(0)
    x = random.integers(-4, -1, (1, 6, 6)).astype(np.float32)
    agree(node, [x, random.standard_normal((1, 3, 3), np.float32), np.asarray(0, np.float32)])


@pytest.mark.parametrize("bits", ["u32[7]", "s32[2,3]", "u64[5]", "u16[9]"])
@pytest.mark.parametrize("low", [0, 2**64 - 1])
def test_philox_bits_and_its_next_state(bits: str, low: int) -> None:
    node = main(
        "s: u64[3]",
        f"  ROOT r = (u64[3], {bits}) rng-bit-generator(s), algorithm=rng_philox",
    )
    state = np.array([0x0123456789ABCDEF, low, 5], np.uint64)
    for made, right in zip(computed(node, [state]), apply(node, [state]), strict=True):
        assert (made == right).all()


def test_nothing_hands_an_array_of_a_device_to_numpy() -> None:
    """Library code gets its array module; only devices meet numpy, for host memory."""
    for path in FOLDER.glob("*.py"):
        names = [
            alias.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for alias in node.names
        ]
        assert "numpy" not in names or path.name in ("cupy_device.py", "driver_device.py"), path


# ---- loops ---------------------------------------------------------------------------------------
COUNTED = """
HloModule counted

condition (s: (s32[], f32[])) -> pred[] {
  s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=INDEX
  n = s32[] constant(LIMIT)
  ROOT less = pred[] compare(i, n), direction=LT
}

body (s: (s32[], f32[])) -> (s32[], f32[]) {
  s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[] get-tuple-element(s), index=1
  step = s32[] constant(STEP)
  next = s32[] add(i, step)
  half = f32[] multiply(x, x)
  ROOT r = (s32[], f32[]) tuple(next, half)
}

ENTRY main (x: f32[]) -> (s32[], f32[]) {
  x = f32[] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[]) tuple(zero, x)
  ROOT end = (s32[], f32[]) while(s), condition=condition, body=body
}
"""


@pytest.mark.parametrize(
    ("step", "limit", "trips"), [(3, 10, 4), (1, 0, 0), (0, 1, None), (1, MOST_TRIPS + 5, None)]
)
def test_trips_that_follow_from_constants(step: int, limit: int, trips: int | None) -> None:
    text = COUNTED.replace("INDEX", "0").replace("STEP", str(step)).replace("LIMIT", str(limit))
    [loop] = [n for n in topological([parse(text).entry.root]) if n.opcode == op.WHILE]
    assert trip_count(loop) == trips


def test_a_condition_on_data_has_no_count() -> None:
    text = COUNTED.replace("INDEX", "1").replace("STEP", "1").replace("LIMIT", "4")
    text = text.replace(
        "i = s32[] get-tuple-element(s), index=1",
        "x = f32[] get-tuple-element(s), index=1\n  i = s32[] convert(x)",
    )
    [loop] = [n for n in topological([parse(text).entry.root]) if n.opcode == op.WHILE]
    assert trip_count(loop) is None


@pytest.mark.parametrize("package", ["cublas", "cu13"])
def test_cublas_is_found_in_its_wheel(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no loader looks: a wheel of CUDA 12 has a package of its own, those of 13 share one."""
    folder = tmp_path / "nvidia" / package / "lib"
    folder.mkdir(parents=True)
    (folder / "libstandin.so.1").symlink_to(standin_library())
    monkeypatch.syspath_prepend(tmp_path)
    found = cublas.load(("libstandin.so.0", "libstandin.so.1"))
    assert found._name == str(folder / "libstandin.so.1")
    with pytest.raises(Refused, match="library_call"):
        cublas.load(("libstandin.so.0",))


STANDIN_CUBLAS = """
#include <stddef.h>
int cublasCreate_v2(void** handle) { *handle = &handle; return 0; }
int cublasSetStream_v2(void* handle, void* stream) { return 0; }
int cublasSetWorkspace_v2(void* handle, void* place, size_t size) { return 0; }
int cublasDestroy_v2(void* handle) { return 0; }
/* Of matrices that lie as they are: column-major, float32 or float64 by `type`. */
#define PRODUCT(real) \\
  for (int batch = 0; batch < count; ++batch) \\
    for (int j = 0; j < n; ++j) \\
      for (int i = 0; i < m; ++i) { \\
        double sum = 0; \\
        for (int l = 0; l < k; ++l) \\
          sum += ((const real*)a)[batch * stride_a + i + l * (long long)row_a] * \\
                 ((const real*)b)[batch * stride_b + l + j * (long long)row_b]; \\
        real* place = (real*)c + batch * stride_c + i + j * (long long)row_c; \\
        *place = *(const real*)alpha * sum + *(const real*)beta * *place; \\
      }
int cublasGemmStridedBatchedEx(
    void* handle, int turn_a, int turn_b, int m, int n, int k, const void* alpha,
    const void* a, int type_a, int row_a, long long stride_a,
    const void* b, int type_b, int row_b, long long stride_b, const void* beta,
    void* c, int type, int row_c, long long stride_c, int count, int compute, int algorithm) {
  if (turn_a || turn_b || type_a != type || type_b != type) return 7;
  if (type == 0) { PRODUCT(float) } else { PRODUCT(double) }
  return 0;
}
"""


@pytest.mark.parametrize(("dtype", "kind"), [("f32", np.float32), ("f64", np.float64)])
def test_cublas_is_given_the_product_and_its_factors(
    dtype: str, kind: type, tmp_path: Path
) -> None:
    """On a GPU the two factors were once memory that nothing held any more. Here they are read as
    cuBLAS reads them, while every object of Python's that could have taken the place has."""
    source, library = tmp_path / "cublas.c", tmp_path / "libstandin_cublas.so"
    source.write_text(STANDIN_CUBLAS)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
    shapes = ((3, 5, 4), (3, 4, 6), (3, 5, 6))
    left, right, out = (
        instruction(op.PARAMETER, Shape(dtype, dims), number=n) for n, dims in enumerate(shapes)
    )
    numbers = {"lhs_batch_dims": (0,), "rhs_batch_dims": (0,)}
    numbers |= {"lhs_contracting_dims": (2,), "rhs_contracting_dims": (1,)}
    node = instruction(op.DOT, out.shape, (left, right), **numbers)
    random = np.random.default_rng(0)
    given = [random.standard_normal(dims).astype(kind) for dims in shapes[:2]]
    result = np.full(shapes[2], 7, kind)
    handle = cublas.Cublas(0, 0, (str(library),))
    for _ in range(100):
        handle.gemm(gemm(node), *(array.ctypes.data for array in (*given, result)))
        np.testing.assert_allclose(result, apply(node, given), rtol=1e-5)
    handle.close()
