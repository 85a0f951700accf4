"""Every allow-listed operation as small functions over edge inputs: what conformance is checked on.

A case is one operation at one element type with one set of attributes. Its inputs come in classes
(ordinary, nan, inf, zeros, denormal, extreme, empty; for labels also those that no class has); all
classes but `empty` have one shape, so one lowering and one kernel serve them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NUMPY: dict[str, Any] = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "bool": np.bool_,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    **{name: np.dtype(name).type for name in
       ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}  # fmt: skip
FLOATS = ("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
CLASSES = ("ordinary", "nan", "inf", "zeros", "denormal", "extreme", "empty")
WRONG_LABELS = {"label -1": (-1,), "label = classes": (0,), "labels far out": (-7, 2**31 - 9, -300)}
"""Classes of wrong labels, relative to 0 where negative, else to the number of classes."""
CLASSES = (*CLASSES, *WRONG_LABELS)
SHAPE = (6, 8)


TIES = (464.0, 465.0, 61440.0, 61439.0, 17 / 16 + 2**-40, 1.5 * 2**-9, 0.75 * 2**-16, 2**-10)
"""Where float8 rounds, from which on it does not hold a number, what float32 would round before."""
HALVES = (0.5, -0.5, 1.5, -2.5)


@dataclass(frozen=True)
class Case:
    """`shapes` of the data inputs, `constants` are trailing (or, where `leading`, first) operands
    that are known when compiling. `dtypes` of the data inputs, in order. `positive` keeps ordinary
    inputs in the function's domain. `list_input` packs the data inputs into one list argument.
    `unread` outputs are workspaces without a meaning. Integers are labels of `classes`, if any;
    where `verified`, wrong ones never reach a kernel (tensorflow/lookups.py)."""

    operation: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[Array, ...] = ()
    order: tuple[int, ...] | None = None  # operand order: data inputs first, then constants
    note: str = ""
    unread: tuple[int, ...] = ()
    classes: int = 0
    verified: bool = False

    @property
    def name(self) -> str:
        suffix = f" {self.note}" if self.note else ""
        return f"{self.operation} {'/'.join(dict.fromkeys(self.dtypes))}{suffix}"


UNARY = """Exp Expm1 Log Log1p Tanh Sigmoid Erf Erfc Sqrt Rsqrt Inv Reciprocal Softplus Softsign Elu
Selu Sin Cos Floor Ceil Rint Round LeakyRelu L2Loss IsNan IsInf IsFinite Neg Abs Sign Square Relu
Sinh Cosh Tan Acos Atan Asinh Acosh Atanh Relu6 ZerosLike OnesLike LogicalNot Invert Identity
StopGradient PreventGradient Snapshot _MklSwish""".split()
BINARY = """Xlogy Xdivy DivNoNan MulNoNan RealDiv Pow TanhGrad SigmoidGrad
SqrtGrad RsqrtGrad InvGrad ReciprocalGrad SoftplusGrad SoftsignGrad EluGrad SeluGrad LeakyReluGrad
Add AddV2 Sub Mul SquaredDifference Maximum Minimum ReluGrad Relu6Grad Less LessEqual Greater
GreaterEqual Equal NotEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor""".split()
DIVISIONS = "Div FloorDiv FloorMod TruncateDiv Mod".split()
REDUCTIONS = "Sum Mean Max Min Prod All Any".split()
SCANS = ("Cumsum", "Cumprod")


def _int32(*values: int) -> Array:
    return np.array(values, np.int32)


def cases(operation: str, dtypes: Sequence[str]) -> Iterator[Case]:
    """All cases of an operation over element types of its first data input."""
    for dtype in dtypes:
        yield from _cases(operation, dtype)


def _cases(op: str, t: str) -> Iterator[Case]:
    s, zero = SHAPE, np.zeros((), NUMPY[t])
    if op in UNARY:
        yield Case(op, (t,), (s,))
    elif op in BINARY:
        yield Case(op, (t, t), (s, s))
        if op in ("AddV2", "Mul", "SquaredDifference", "Maximum", "Less", "SelectV2"):
            yield Case(op, (t, t), (s, (8,)), note="row")
            yield Case(op, (t, t), ((6, 1), (1, 8)), note="outer")
    elif op in DIVISIONS:
        yield from _divisions(op, t, s)
    elif op in REDUCTIONS:
        for axes, keep in (((1,), False), ((0,), True), ((0, 1), False), ((), False)):
            note = f"axes={axes} keep={keep}"
            yield Case(op, (t,), (s,), {"keep_dims": keep}, (_int32(*axes),), note=note)
    elif op in SCANS:
        for shape, axis in ((s, 0), ((3, 20, 4), 1), ((5, 40), -1)):
            for exclusive, reverse in itertools.product((False, True), repeat=2):
                note = f"{shape} axis={axis} exclusive={exclusive} reverse={reverse}"
                attributes = {"exclusive": exclusive, "reverse": reverse}
                yield Case(op, (t,), (shape,), attributes, (np.int32(axis),), note=note)
    elif op in TABLE:
        yield from TABLE[op](t, s, zero)


def _divisions(op: str, t: str, s: tuple[int, ...]) -> Iterator[Case]:
    """Of integers by constants alone, as regions may hold (tensorflow/constant_operands.py)."""
    if t in FLOATS:
        yield Case(op, (t, t), (s, s))
        return
    signs = (1, -1) if t.startswith("int") else (1,)
    for divisor in (7, 64, 1, 127, np.iinfo(NUMPY[t]).max):
        for sign in signs if divisor != 1 else (1,):
            yield Case(op, (t,), (s,), {}, (NUMPY[t](sign * divisor),), note=f"by {sign * divisor}")
    yield Case(op, (t,), (s,), {}, (np.arange(2, 10).astype(NUMPY[t]),), note="by a row")


def _movement(t: str, s: tuple[int, ...], zero: Array) -> dict[str, tuple[Case, ...]]:
    """Operations with operands that are known when compiling."""
    axis = np.int32(1)
    strided = {"begin_mask": 1, "end_mask": 0, "shrink_axis_mask": 0}
    begin, end, strides = _int32(0, -2), _int32(5, -7), _int32(2, -1)
    return {
        "Reshape": (Case("Reshape", (t,), (s,), {}, (_int32(4, -1),)),),
        "ExpandDims": (Case("ExpandDims", (t,), (s,), {}, (axis,)),),
        "Squeeze": (Case("Squeeze", (t,), ((6, 1, 8),), {"squeeze_dims": [1]}),),
        "Transpose": (Case("Transpose", (t,), (s,), {}, (_int32(1, 0),)),),
        "ReverseV2": (Case("ReverseV2", (t,), (s,), {}, (_int32(1),)),),
        "Tile": (Case("Tile", (t,), (s,), {}, (_int32(2, 3),)),),
        "BroadcastTo": (Case("BroadcastTo", (t,), ((6, 1),), {}, (_int32(3, 6, 8),)),),
        "Fill": (Case("Fill", (t,), ((),), {}, (_int32(3, 4),), order=(1, 0)),),
        "Slice": (Case("Slice", (t,), (s,), {}, (_int32(1, 2), _int32(4, -1))),),
        "StridedSlice": (Case("StridedSlice", (t,), (s,), strided, (begin, end, strides)),),
        "StridedSliceGrad": (
            Case("StridedSliceGrad", (t,), ((3, 5),), strided,
                 (_int32(6, 8), begin, end, strides), order=(1, 2, 3, 4, 0)),
        ),
        "Pad": (Case("Pad", (t,), (s,), {}, (np.array([[1, 2], [0, 3]], np.int32),)),),
        "PadV2": (
            Case("PadV2", (t,), (s,), {}, (np.array([[1, 0], [2, 3]], np.int32), zero + 1)),
        ),
        "Roll": tuple(
            Case("Roll", (t,), (s,), {}, (shift, at), note=f"{shift} along {at}")
            for shift, at in ((_int32(2, -11), _int32(0, 1)), (_int32(-3, 1), _int32(1, 1)),
                              (np.int32(4), np.int32(-1)), (np.int32(0), np.int32(0)))
        ),
        **{
            name: tuple(
                Case(name, (t,), (s,), {"mode": mode}, (paddings,), note=mode)
                for mode in ("REFLECT", "SYMMETRIC")
            )
            for name, paddings in (("MirrorPad", np.array([[1, 2], [0, 3]], np.int32)),
                                   ("MirrorPadGrad", np.array([[1, 2], [0, 3]], np.int32)))
        },
        "DepthToSpace": (Case("DepthToSpace", (t,), ((2, 3, 5, 8),), {"block_size": 2}),),
        "SpaceToDepth": (Case("SpaceToDepth", (t,), ((2, 4, 6, 3),), {"block_size": 2}),),
        "SpaceToBatchND": (
            Case("SpaceToBatchND", (t,), ((2, 5, 6, 3),), {},
                 (_int32(2, 3), np.array([[1, 2], [0, 3]], np.int32))),
        ),
        "BatchToSpaceND": (
            Case("BatchToSpaceND", (t,), ((12, 4, 3, 3),), {},
                 (_int32(2, 3), np.array([[1, 2], [0, 3]], np.int32))),
        ),
        "MatrixBandPart": tuple(
            Case("MatrixBandPart", (t,), (shape,), {}, (np.int64(low), np.int64(high)),
                 note=f"{low} {high}")
            for shape in (s, (2, 7, 5)) for low, high in ((-1, 0), (2, 1), (0, -1))
        ),
        "MatrixDiag": (Case("MatrixDiag", (t,), (s,)),),
        "MatrixDiagPart": (Case("MatrixDiagPart", (t,), (s,)),),
        "MatrixSetDiag": (Case("MatrixSetDiag", (t, t), ((2, 5, 7), (2, 5))),),
        "MatrixDiagV3": (
            Case("MatrixDiagV3", (t, t), (s, ()), {}, (np.int32(1), np.int32(-1), np.int32(-1)),
                 order=(0, 2, 3, 4, 1)),
            Case("MatrixDiagV3", (t, t), (s, ()), {}, (np.int32(0), np.int32(9), np.int32(8)),
                 order=(0, 2, 3, 4, 1), note="wide"),
        ),
        "MatrixDiagPartV3": tuple(
            Case("MatrixDiagPartV3", (t,), (s,), {}, (k, zero + 1), note=f"{k}")
            for k in (np.int32(0), np.int32(-2), _int32(-1, 2))
        ),
        "MatrixSetDiagV3": (
            Case("MatrixSetDiagV3", (t, t), ((2, 5, 7), (2, 5)), {}, (np.int32(1),)),
        ),
        "ConcatV2": (Case("ConcatV2", (t, t), (s, s), {"N": 2}, (axis,)),),
        "Split": (Case("Split", (t,), (s,), {"num_split": 4}, (axis,), order=(1, 0)),),
        "SplitV": (
            Case("SplitV", (t,), (s,), {"num_split": 2}, (_int32(3, 5), axis)),
        ),
        "Pack": (Case("Pack", (t, t), (s, s), {"N": 2, "axis": 1}),),
        "Unpack": (Case("Unpack", (t,), (s,), {"num": 6, "axis": 0}),),
    }  # fmt: skip


def _contractions(t: str) -> dict[str, tuple[Case, ...]]:
    """One row, one column, one contracted element, none of these, operands transposed; batches;
    and what Grappler fuses into a product."""
    plain = (((1, 8), (8, 6), False, False), ((6, 8), (8, 1), False, False),
             ((6, 1), (1, 8), False, False), ((8, 1), (8, 6), True, False),
             ((6, 8), (1, 8), False, True))  # fmt: skip
    if t != "float64":  # those stay the library's (fusion/contraction.py)
        plain += (((6, 8), (8, 17), False, False), ((8, 6), (8, 5), True, False),
                  ((6, 8), (5, 8), False, True), ((8, 6), (5, 8), True, True))  # fmt: skip

    def batched(op: str, batch: tuple[int, ...]) -> tuple[Case, ...]:
        return tuple(
            Case(op, (t, t), ((*batch, *left), (*batch, *right)), {"adj_x": x, "adj_y": y},
                 note=f"{batch} x {left} {right} {x} {y}")
            for left, right, x, y in plain
        )  # fmt: skip

    einsums = {
        "abc,cd->abd": ((2, 6, 8), (8, 5)),
        "aecd,abcd->acbe": ((2, 5, 3, 8), (2, 7, 3, 8)),
        "ab,cb->ca": ((6, 8), (5, 8)),
    }
    broadcast = (((2, 6, 8), (8, 5)), ((3, 1, 6, 8), (1, 2, 8, 5)))
    return {
        "MatMul": tuple(
            Case("MatMul", (t, t), (left, right), {"transpose_a": x, "transpose_b": y},
                 note=f"{left} {right} {x} {y}")
            for left, right, x, y in plain
        ),
        "BatchMatMul": batched("BatchMatMul", (3, 2)),
        "BatchMatMulV2": (
            *batched("BatchMatMulV2", (3,)),
            *(Case("BatchMatMulV2", (t, t), both, note=f"{both[0]} {both[1]}")
              for both in broadcast),
        ),
        "Einsum": tuple(
            Case("Einsum", (t, t), both, {"N": 2, "equation": equation}, note=equation)
            for equation, both in einsums.items()
        ),
        "_FusedMatMul": tuple(
            Case("_FusedMatMul", (t, t, t), ((6, 8), (8, 9), (9,)),
                 {"fused_ops": ["BiasAdd", *after], "num_args": 1}, note=" ".join(after))
            for after in ((), ("Tanh",), ("Sigmoid",))
        ),
    }  # fmt: skip


def _special(t: str, s: tuple[int, ...], zero: Array) -> dict[str, tuple[Case, ...]]:
    """Operations of several kinds of inputs."""
    rows, image = (s[0],), (2, 3, 4, 5)
    norm = {"epsilon": 1e-3, "data_format": "NHWC"}
    channels = ((5,), (5,))
    compositions = tuple(
        Case("_UnaryOpsComposition", (t,), (shape,), {"op_names": names}, note="+".join(names))
        for names, shape in (
            (["Neg", "Exp"], s),
            (["Square", "Sqrt"], s),
            (["Tanh", "Neg"], s),
            (["Log1p", "Relu"], s),
            (["Round", "Abs"], (12, 12)),  # for all of HALVES
            (["Sigmoid", "Elu"], s),
        )
    )
    casts = tuple(
        Case("Cast", (t,), (s,), {"SrcT": t, "DstT": target}, note=f"to {target}")
        for target in NUMPY
    )
    one_hot = np.int32(8)
    return {
        "Select": (Case("Select", ("bool", t, t), (s, s, s)),),
        "SelectV2": (
            Case("SelectV2", ("bool", t, t), (s, s, s)),
            Case("SelectV2", ("bool", t, t), ((6, 1), s, ()), note="broadcast"),
        ),
        "AddN": (Case("AddN", (t, t, t), (s, s, s), {"N": 3}),),
        "ClipByValue": (Case("ClipByValue", (t, t, t), (s, (), ())),),
        "BiasAdd": (Case("BiasAdd", (t, t), (s, (8,))),),
        "BiasAddGrad": (Case("BiasAddGrad", (t,), (s,)),),
        "Softmax": (Case("Softmax", (t,), (s,)),),
        "LogSoftmax": (Case("LogSoftmax", (t,), (s,)),),
        "SoftmaxCrossEntropyWithLogits": (
            Case("SoftmaxCrossEntropyWithLogits", (t, t), (s, s)),
        ),
        "SparseSoftmaxCrossEntropyWithLogits": tuple(
            Case("SparseSoftmaxCrossEntropyWithLogits", (t, labels), (size, size[:1]),
                 classes=size[1], note=f"{size[1]} classes")
            for labels in ("int32", "int64") for size in (s, (37, 300))
        ),
        "GatherV2": tuple(
            Case("GatherV2", (t, indices), (s, (3, 5)), {}, (np.int32(axis),), classes=s[axis],
                 note=f"{indices} axis={axis}", verified=True)
            for indices in ("int32", "int64") for axis in (0, 1, -1)
        ),
        "UnsortedSegmentSum": tuple(
            Case("UnsortedSegmentSum", (t, ids), (s, s[:1]), {}, (np.int32(9),), classes=9,
                 note=ids, verified=True)
            for ids in ("int32", "int64")
        ),
        "Range": (
            Case("Range", (), (), {}, (zero, zero + 7, zero + 2), note=t),
        ),
        "Bitcast": tuple(
            Case("Bitcast", (t,), (s,), {"type": target}, note=f"to {target}")
            for target in NUMPY if np.dtype(NUMPY[target]).itemsize == zero.itemsize
            if "bool" not in (t, target)
        ),
        "EnsureShape": (Case("EnsureShape", (t,), (s,), {"shape": (None, 8)}),),
        **{
            name: tuple(
                Case(name, (t,), (shape,), {"output_type": kind}, (np.int32(axis),),
                     note=f"{shape} axis={axis} {kind}")
                for shape, axis, kind in
                ((s, 0, "int32"), (s, -1, "int64"), ((5, 70, 3), 1, "int64"))
            )
            for name in ("ArgMax", "ArgMin")
        },
        "InTopK": tuple(
            Case("InTopK", ("float32", number), (s, s[:1]), {"k": 3}, classes=8, note=number)
            for number in ("int32", "int64")
        ),
        "InTopKV2": tuple(
            Case("InTopKV2", ("float32", number), (s, s[:1]), {}, (NUMPY[number](k),), classes=8,
                 note=f"{number} {k}")
            for number in ("int32", "int64") for k in (1, 5)
        ),
        "StatelessRandomGetKeyCounter": (
            Case("StatelessRandomGetKeyCounter", (t,), ((2,),)),
        ),
        "StatelessRandomUniformV2": tuple(
            Case("StatelessRandomUniformV2", ("uint64", "uint64"), ((1,), (2,)), {"dtype": drawn},
                 (np.array(shape, NUMPY[t]), np.int32(algorithm)), order=(2, 0, 1, 3),
                 note=f"{drawn}{shape} {t} {algorithm}")
            for drawn in FLOATS for shape in ([3, 5], [7, 64, 3]) for algorithm in (1, 3)
        ),
        "OneHot": (
            Case("OneHot", (t, "float32", "float32"), (rows, (), ()), {"axis": -1}, (one_hot,),
                 order=(0, 3, 1, 2)),
        ),
        "Cast": casts,
        "_UnaryOpsComposition": compositions,
        "FusedBatchNormV3": (
            Case("FusedBatchNormV3", (t, "float32", "float32", "float32", "float32"),
                 (image, *channels, (0,), (0,)), {**norm, "is_training": True}, note="training"),
            Case("FusedBatchNormV3", (t, "float32", "float32", "float32", "float32"),
                 (image, *channels, *channels), {**norm, "is_training": False}, note="inference"),
        ),
        "_FusedBatchNormEx": tuple(
            Case("_FusedBatchNormEx", (t, *("float32",) * 4), ((2, 3, 4, 8), *((8,),) * 4),
                 {**norm, "is_training": training, "activation_mode": "Relu", "num_side_inputs": 0,
                  "exponential_avg_factor": 0.01}, note=f"training {training}", unread=(5,))
            for training in (True, False)
        ),
        "_MklLayerNorm": tuple(
            Case("_MklLayerNorm", (t,) * 3, (shape, shape[-1:], shape[-1:]), {"epsilon": 0.001})
            for shape in ((4, 33), (2, 3, 64))
        ),
        "FusedBatchNormGradV3": (
            Case("FusedBatchNormGradV3", (t, t, "float32", "float32", "float32", "float32"),
                 (image, image, (5,), *channels, (5,)), {**norm, "is_training": True}),
        ),
    }  # fmt: skip


def _entry(name: str) -> Any:
    def make(t: str, s: tuple[int, ...], zero: Array) -> tuple[Case, ...]:
        return {**_movement(t, s, zero), **_special(t, s, zero), **_contractions(t)}[name]

    return make


_PROBE = {**_movement("float32", SHAPE, np.zeros((), np.float32)),
          **_special("float32", SHAPE, np.zeros((), np.float32)),
          **_contractions("float32")}  # fmt: skip
TABLE = {name: _entry(name) for name in _PROBE}
"""Operations that are neither unary, binary nor reductions."""


def is_covered(operation: str) -> bool:
    """Whether cases of an operation can be made: the table must cover the whole allow-list."""
    return operation in {*UNARY, *BINARY, *DIVISIONS, *REDUCTIONS, *SCANS, *TABLE}


def inputs(case: Case, kind: str) -> list[Array] | None:
    """Data inputs of a class; None where the class does not apply to the case's types."""
    has_float = any(dtype in FLOATS for dtype in case.dtypes)
    has_integer = any(dtype not in (*FLOATS, "bool") for dtype in case.dtypes)
    if kind in ("nan", "inf", "zeros", "denormal") and not has_float:
        return None
    if kind == "extreme" and not (has_float or has_integer):
        return None
    dropped = case.operation == "UnsortedSegmentSum" and kind == "label -1"
    if kind in WRONG_LABELS and (case.verified or not case.classes) and not dropped:
        return None
    if kind == "empty" and (case.constants or not case.shapes or len(case.shapes[0]) != 2):
        return None
    generator = np.random.default_rng(7)
    arrays = []
    for number, (dtype, shape) in enumerate(zip(case.dtypes, case.shapes, strict=True)):
        rows = len(shape) == 2 or case.classes > 0
        extents = (0, *shape[1:]) if kind == "empty" and rows else shape
        if case.classes and number == 1:
            arrays.append(_labels(generator, NUMPY[dtype], extents, kind, case.classes))
            continue
        ties = TIES if case.operation == "Cast" else ()
        if "Round" in case.attributes.get("op_names", ()):
            ties = HALVES
        arrays.append(_values(generator, dtype, extents, kind, number, ties))
    return arrays


def _labels(
    generator: np.random.Generator, numpy: Any, shape: tuple[int, ...], kind: str, classes: int
) -> Array:
    """Labels; of a class of wrong ones some are, among others the first and the last."""
    labels = generator.integers(0, classes, shape).astype(numpy)
    wrong = [n if n < 0 else min(n + classes, 2**31 - 1) for n in WRONG_LABELS.get(kind, ())]
    for place, value in zip((0, -1, shape[0] // 2), wrong, strict=False):
        labels[place] = value
    return labels


def _values(
    generator: np.random.Generator,
    dtype: str,
    shape: tuple[int, ...],
    kind: str,
    number: int,
    ties: tuple[float, ...],
) -> Array:
    numpy = NUMPY[dtype]
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(np.bool_)
    size = int(np.prod(shape))
    if dtype not in FLOATS:
        info = np.iinfo(numpy)
        low = max(int(info.min), -9)
        plain = generator.integers(low, 10, size).astype(numpy)
        specials = [info.min, info.max, 0, 1, info.max // 2] if kind == "extreme" else []
    else:
        limits = ml_dtypes.finfo(numpy)
        plain = generator.normal(0.0, 1.5, size).astype(numpy)
        tiny, large = float(limits.smallest_normal), float(limits.max)
        specials = {
            "nan": [np.nan, 1.0, 0.0, -2.0],
            "inf": [np.inf, -np.inf, 1.0, 0.0, -1.0],
            "zeros": [0.0, -0.0, 1.0, -1.0],
            "denormal": [tiny / 4, -tiny / 4, tiny, 1.0, 0.0],
            "extreme": [large, -large, tiny, -tiny, large / 3, 90.0, -90.0, 1.0, *ties],
        }.get(kind, [])
    if specials:
        # Each pair of specials meets: the second input runs through them at another pace.
        grid = list(itertools.product(specials, specials))
        chosen = [pair[number % 2] for pair in grid]
        plain[: len(chosen)] = np.array(chosen[:size], dtype=np.float64 if dtype in FLOATS else
                                        object).astype(numpy)  # fmt: skip
    return plain.reshape(shape)
