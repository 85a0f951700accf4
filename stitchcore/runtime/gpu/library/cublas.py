"""cuBLAS through ctypes: one function, on a stream that may be being captured.

CuPy's own binding refuses to be captured; the library does not, once it has a workspace of its own
(cuBLAS documentation, "CUDA Graphs Support").
"""

from __future__ import annotations

import ctypes
from typing import Any

from stitchcore.errors import Reason, Refused
from stitchcore.runtime.gpu.library.gemm import Gemm, Matrices
from stitchcore.toolchain import cuda_wheels

NAMES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")
WORKSPACE_BYTES = 32 << 20
"""What cuBLAS recommends for Hopper; more than older devices need."""

_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}  # cudaDataType_t
_FLOAT, _FLOAT_BY_TF32, _DOUBLE = 68, 77, 70  # cublasComputeType_t
_AS_IS, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT_ALGORITHM = -1

_ADDRESS, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_OPERAND = (_ADDRESS, _INT, _INT, _LONG)  # address, type, leading dimension, stride
_SHAPE = (_INT, _INT, _INT, _INT, _INT)
_ARGUMENTS = (_ADDRESS, *_SHAPE, _ADDRESS, *_OPERAND, *_OPERAND, _ADDRESS, *_OPERAND)


class Cublas:
    """A handle for one stream. `workspace` is memory of the device of WORKSPACE_BYTES."""

    def __init__(self, stream: int, workspace: int, names: tuple[str, ...] = NAMES) -> None:
        self._library = load(names)
        self._library.cublasGemmStridedBatchedEx.argtypes = (*_ARGUMENTS, _INT, _INT, _INT)
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        self._call("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(workspace), size)

    def gemm(self, product: Gemm, left: int, right: int, result: int) -> None:
        """From and to addresses. cuBLAS is column-major, where a row-major matrix is its own
        transpose: the product's transpose is that of the operands' in the other order."""
        double = product.dtype == "f64"
        number: Any = ctypes.c_double if double else ctypes.c_float
        alpha, beta = number(1), number(0)
        compute = _DOUBLE if double else _FLOAT
        if product.dtype == "f32" and product.reduced:
            compute = _FLOAT_BY_TF32
        kind = _TYPES[product.dtype]
        operation_right, *other_right = _operand(product.right, right, kind)
        operation_left, *other_left = _operand(product.left, left, kind)
        self._call(
            "cublasGemmStridedBatchedEx",
            self._handle,
            operation_right,
            operation_left,
            product.n,
            product.m,
            product.k,
            ctypes.byref(alpha),
            *other_right,
            *other_left,
            ctypes.byref(beta),
            result,
            kind,
            product.n,
            product.m * product.n,
            product.batch,
            compute,
            _DEFAULT_ALGORITHM,
        )

    def close(self) -> None:
        self._call("cublasDestroy_v2", self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with status {status}")


def _operand(side: Matrices, address: int, kind: int) -> tuple[int, int, int, int, int]:
    """Operation, address, type, leading dimension, and elements from one matrix to the next."""
    if side.column == 1:
        return _AS_IS, address, kind, side.row, side.matrix
    return _TRANSPOSED, address, kind, side.column, side.matrix


def load(names: tuple[str, ...]) -> ctypes.CDLL:
    """By the loader's own search, else out of a wheel."""
    places = [folder / name for folder in cuda_wheels.folders("cublas") for name in names]
    for place in (*names, *places):
        try:
            return ctypes.CDLL(str(place))
        except OSError:
            continue
    detail = f"none of {', '.join(names)} can be loaded: pip install nvidia-cublas-cu12"
    raise Refused("cuBLAS", Reason.LIBRARY_CALL, detail)
