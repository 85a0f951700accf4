"""The allow-list: which TensorFlow operations a region may hold, one line each.

A line names the operation, the element types it is taken for, and how its outputs relate to its
inputs. What tf2xla does not mean as TensorFlow does (docs/semantics.md) is absent, or limited by
type: integer powers (an error in TensorFlow), casts from float to narrow integers (another rule for
NaN and out of range), left shifts, and what raises on data, but for sparse labels, where the error
is part of the meaning (CHECKED), lookups, whose indices are verified before (lookups.py), and what
the graph's own constants decide (constant_operands.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorflow.python.framework import dtypes

FLOATS = frozenset({"float32", "float64", "bfloat16", "float16"})
STORED = frozenset({"float8_e4m3fn", "float8_e5m2"})
"""Floats that TensorFlow casts and moves, and never computes with."""
WIDE = frozenset({"float32", "float64"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | STORED | {"bool"}


@dataclass(frozen=True)
class Allowed:
    """`inputs` are the element types its first data input may have; `outputs` its outputs'.

    `view` marks operations that move no data by themselves (a region of views only is no gain).
    """

    inputs: frozenset[str] = ANY
    outputs: frozenset[str] = ANY
    view: bool = False


_GROUPS: tuple[tuple[Allowed, str], ...] = (
    (
        Allowed(FLOATS),
        """
        Exp Expm1 Log Log1p Tanh Sigmoid Erf Erfc Sqrt Rsqrt Inv Reciprocal Softplus Softsign Elu
        Selu Sin Cos Tan Sinh Cosh Acos Atan Asinh Acosh Atanh Floor Ceil Rint Round Xlogy Xdivy
        Log1p DivNoNan MulNoNan RealDiv Pow
        TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad SoftplusGrad SoftsignGrad
        EluGrad SeluGrad LeakyRelu LeakyReluGrad Softmax LogSoftmax SoftmaxCrossEntropyWithLogits
        L2Loss FusedBatchNormV3 FusedBatchNormGradV3 IsNan IsInf IsFinite Mean _UnaryOpsComposition
        """,
    ),
    (
        Allowed(NUMBERS),
        """
        Add AddV2 Sub Mul Neg Abs Sign Square SquaredDifference Maximum Minimum Relu Relu6 ReluGrad
        Relu6Grad AddN BiasAdd BiasAddGrad Sum Max Min Prod Less LessEqual Greater GreaterEqual
        Range Div FloorDiv FloorMod
        """,
    ),
    (Allowed(INTEGERS), "TruncateDiv"),
    (Allowed(frozenset({"int32", "int64"})), "Mod"),
    (Allowed(), "Equal NotEqual Select SelectV2 ZerosLike OnesLike Fill Tile BroadcastTo"),
    (Allowed(), "ConcatV2 Split SplitV Pack Unpack Slice StridedSlice StridedSliceGrad Pad PadV2"),
    (Allowed(), "Transpose ReverseV2 Roll MirrorPad DepthToSpace SpaceToDepth SpaceToBatchND"),
    (Allowed(), "BatchToSpaceND MatrixBandPart MatrixDiag MatrixDiagV3 MatrixDiagPart"),
    (Allowed(), "MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV3"),
    (Allowed(WIDE | INTEGERS), "MirrorPadGrad"),
    # of other integers tf2xla has no lowering, and half types overflow in TensorFlow on the way
    (Allowed(WIDE | {"int32", "int64"}), "Cumsum Cumprod"),
    (Allowed(frozenset({"bool"})), "LogicalAnd LogicalOr LogicalNot All Any"),
    (Allowed(INTEGERS), "BitwiseAnd BitwiseOr BitwiseXor Invert"),
    (
        Allowed(view=True),
        """
        Identity Reshape ExpandDims Squeeze StopGradient PreventGradient Snapshot Bitcast
        EnsureShape
        """,
    ),
)

ALLOWED: dict[str, Allowed] = {
    **{name: rule for rule, names in _GROUPS for name in names.split()},
    "Cast": Allowed(),
    "OneHot": Allowed(INTEGERS),
    **dict.fromkeys(("ArgMax", "ArgMin"), Allowed()),
    **dict.fromkeys(("InTopK", "InTopKV2"), Allowed(frozenset({"float32"}))),
    "StatelessRandomUniformV2": Allowed(frozenset({"int32", "int64"})),
    "StatelessRandomGetKeyCounter": Allowed(frozenset({"int32", "int64"})),
    "SparseSoftmaxCrossEntropyWithLogits": Allowed(FLOATS),
    **dict.fromkeys(
        ("_FusedBatchNormEx", "_MklSwish", "_MklLayerNorm"),
        Allowed(frozenset({"float32"})),
    ),
    "GatherV2": Allowed(),
    "UnsortedSegmentSum": Allowed(WIDE | INTEGERS),
    # TensorFlow 2.15 adds products of float16 up in float16: 7e-3 off for 512 terms
    **dict.fromkeys(
        ("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"), Allowed(FLOATS - {"float16"})
    ),
    "_FusedMatMul": Allowed(frozenset({"float32"})),
    # not as TensorFlow's kernel for the types left out (tests/tensorflow/test_conformance.py)
    "Erf": Allowed(FLOATS - {"float64"}),
    "Mean": Allowed(FLOATS - {"float16"}),
    "Pow": Allowed(FLOATS - {"bfloat16"}),
    "SqrtGrad": Allowed(FLOATS - {"float16"}),
    "OnesLike": Allowed(ANY - {"uint32", "uint64"}),
}
"""By operation name. Which Cast from float to integer or bool is refused: `cast_is_allowed`."""

SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any"), (1,)),
    **dict.fromkeys(("Reshape", "ExpandDims", "Transpose", "ReverseV2", "Tile"), (1,)),
    **dict.fromkeys(("BroadcastTo", "Pad", "PadV2", "OneHot", "Cumsum", "Cumprod"), (1,)),
    "Fill": (0,),
    "Split": (0,),
    "SplitV": (1, 2),
    "Slice": (1, 2),
    "StridedSlice": (1, 2, 3),
    "StridedSliceGrad": (0, 1, 2, 3),
    "ConcatV2": (-1,),
    "Range": (0, 1, 2),
    **dict.fromkeys(("Roll", "SpaceToBatchND", "BatchToSpaceND", "MatrixBandPart"), (1, 2)),
    **dict.fromkeys(("MirrorPad", "MirrorPadGrad"), (1,)),
    "MatrixDiagV3": (1, 2, 3),
    "MatrixDiagPartV3": (1, 2),
    "MatrixSetDiagV3": (2,),
    **dict.fromkeys(("GatherV2", "UnsortedSegmentSum"), (2,)),
    "StatelessRandomUniformV2": (0, 3),
    **dict.fromkeys(("ArgMax", "ArgMin"), (1,)),
}
"""Positions of the operands whose values tf2xla must know: they decide shapes and axes."""

SHAPE_OPERATIONS = frozenset(
    """
    Shape ShapeN Size Rank StridedSlice Pack ConcatV2 Prod Mul Add AddV2 Sub FloorDiv FloorMod
    Maximum Minimum Cast Range Reshape Squeeze ExpandDims Fill Select SelectV2 Equal Identity
    BroadcastGradientArgs ConcatOffset DynamicStitch GatherV2 Slice Neg Less Greater Unpack
    InvertPermutation Transpose
    """.split()
)
"""Operations that shape arithmetic is made of: small integer tensors that come from shapes."""

CONTRACTIONS = {
    "MatMul": ("transpose_a", "transpose_b"),
    "_FusedMatMul": ("transpose_a", "transpose_b"),
    "BatchMatMul": ("adj_x", "adj_y"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "Einsum": (),
}
"""Taken where they are small (products.py), else library calls: attributes that say which operand
is read transposed."""

GROWING = frozenset(CONTRACTIONS) | frozenset(
    """
    Fill Tile BroadcastTo Range ConcatV2 Pack Pad PadV2 MirrorPad StridedSliceGrad OneHot MatrixDiag
    MatrixDiagV3 GatherV2 UnsortedSegmentSum StatelessRandomUniformV2
    """.split()
)
"""Allow-listed operations whose output mostly has more elements than any input."""

FUSED_INTO_PRODUCTS: Mapping[str, frozenset[tuple[bytes, ...]]] = {
    "cpu": frozenset({(b"BiasAdd",), (b"BiasAdd", b"Tanh"), (b"BiasAdd", b"Sigmoid")}),
    "gpu": frozenset({(b"BiasAdd",)}),
}
"""What a `_FusedMatMul` may do with its product, its attribute `fused_ops`, by kind of device. Not
Relu and Relu6: of NaN they make 0 on a CPU where oneDNN is on and NaN where it is off, which no
graph tells; on a GPU Relu is an epilogue of cuBLASLt, of which nothing says what it makes of NaN,
and Tanh and Sigmoid are for float16 alone (core/kernels/matmul_op_fused.cc)."""

CHECKED = frozenset({"SparseSoftmaxCrossEntropyWithLogits"})
"""Operations whose error on data is part of their formula (semantics.py)."""

SHAPED = CHECKED | {"ArgMax", "ArgMin", "InTopK", "InTopKV2"}
"""Operations whose formula here takes the sizes of their inputs (semantics.py)."""

CPU_ONLY = frozenset(
    "ArgMax ArgMin InTopK InTopKV2 _MklSwish _MklLayerNorm ResourceApplyAdaMax".split()
)
"""Operations whose formula here is that of TensorFlow's kernel on a CPU."""

NOT_ON_GPU: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("Max", "Min"), frozenset({"float16"})),
    **dict.fromkeys(("Erf", "Erfc"), frozenset({"bfloat16"})),
}
"""Types in which TensorFlow's kernel on a GPU makes a number of NaN, and ours NaN."""

DRAWN = ("StatelessRandomUniformV2", "StatelessRandomGetKeyCounter")
"""Random numbers by an explicit key. What is drawn of them bit for bit is what CPUs draw
(semantics.py); on a GPU the keys are in host memory."""

READ = "ReadVariableOp"
ASSIGNMENTS = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": "AddV2",
    "AssignSubVariableOp": "Sub",
}
"""Dense writes of a variable: the operation that makes the new value, None where it is given."""


EXACT = frozenset(
    """
    Abs Add AddV2 All Any BroadcastTo Cast Ceil ClipByValue ConcatV2 Equal ExpandDims Fill Floor
    FloorDiv FloorMod Greater GreaterEqual Identity Less LessEqual LogicalAnd LogicalNot
    LogicalOr MatrixBandPart MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 Max Maximum Min
    Minimum Mul Neg NotEqual OneHot OnesLike Pack Pad PadV2 Range RealDiv Reshape ReverseV2
    Select SelectV2 Sign Square Squeeze StridedSlice Sub Tile Transpose ZerosLike
    """.split()
)
"""Operations of which a kernel's result is TensorFlow's bit for bit, for the same inputs."""


def bitcast_is_allowed(source: str, target: str) -> bool:
    """Whether bits become others one by one: of one width, and any is a value."""
    sizes = {dtypes.as_dtype(t).size for t in (source, target)}
    return len(sizes) == 1 and {source, target} <= NUMBERS


FROM_FLOATS = {"cpu": frozenset({"int32", "int64", "bool"}), "gpu": frozenset({"int32"})}
"""By kind of device what floats may become."""


def cast_is_allowed(source: str, target: str, kind: str) -> bool:
    """Float to integer casts follow the processor in TensorFlow and saturate in XLA. Our kernels'
    conversion is x86's, as TensorFlow's to 32 and 64 bits is; narrower types are saturated in
    some versions and lanes. What CUDA's conversions to 32 bits do is written down and lowered
    (semantics.py)."""
    if source not in ANY or target not in ANY:
        return False
    if source == "bfloat16" and target == "bool":
        return False  # denormals are true there, and flushed here
    floats = FLOATS | STORED
    if source not in floats:
        return target not in STORED  # no kernel of TensorFlow's
    return target in floats or target in FROM_FLOATS[kind]
