"""Element types and shapes. Arrays are dense and row-major: other layouts are refused at import."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from stitchcore.hlo.ir.dim import Dim


@dataclass(frozen=True)
class DType:
    """One element type: HLO name, numpy type, size in bytes, and what kind of number it is."""

    name: str
    numpy: np.dtype
    bytes: int
    kind: str  # "float" | "signed" | "unsigned" | "pred"

    @property
    def narrow(self) -> bool:
        """Whether it is a float that is only stored: computed in f32, and rounded."""
        return self.kind == "float" and self.bytes < 4


def _dtype(name: str, numpy: object, kind: str) -> tuple[str, DType]:
    dtype = np.dtype(numpy)  # type: ignore[call-overload]
    return name, DType(name, dtype, dtype.itemsize, kind)


DTYPES: dict[str, DType] = dict(
    [
        _dtype("pred", np.bool_, "pred"),
        _dtype("s8", np.int8, "signed"),
        _dtype("s16", np.int16, "signed"),
        _dtype("s32", np.int32, "signed"),
        _dtype("s64", np.int64, "signed"),
        _dtype("u8", np.uint8, "unsigned"),
        _dtype("u16", np.uint16, "unsigned"),
        _dtype("u32", np.uint32, "unsigned"),
        _dtype("u64", np.uint64, "unsigned"),
        _dtype("f8e4m3fn", ml_dtypes.float8_e4m3fn, "float"),
        _dtype("f8e5m2", ml_dtypes.float8_e5m2, "float"),
        _dtype("f16", np.float16, "float"),
        _dtype("bf16", ml_dtypes.bfloat16, "float"),
        _dtype("f32", np.float32, "float"),
        _dtype("f64", np.float64, "float"),
    ]
)
"""Every element type a kernel may hold."""


@dataclass(frozen=True)
class Shape:
    """An array (`elements` is None) or a tuple (`dtype` is "tuple", `elements` its members).

    `dtype` may also name a type outside DTYPES ("token", "c64"): such values stay outside kernels.
    `bounded` lists the dimensions whose extent is only an upper bound (`f32[<=16]`): a value of
    such a shape stays outside kernels too.
    """

    dtype: str
    dims: tuple[Dim, ...] = ()
    elements: tuple[Shape, ...] | None = None
    bounded: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def static(self) -> tuple[int, ...]:
        """The extents as integers. Raises ValueError when one is symbolic."""
        extents = tuple(dim for dim in self.dims if isinstance(dim, int))
        if len(extents) != len(self.dims):
            raise ValueError(f"{self} is not static")
        return extents

    @property
    def size(self) -> Dim:
        """Number of elements of an array."""
        product: Dim = 1
        for dim in self.dims:
            product = product * dim
        return product

    @property
    def byte_size(self) -> Dim:
        """Bytes of the array, or of all members of the tuple."""
        if self.elements is not None:
            total: Dim = 0
            for element in self.elements:
                total = total + element.byte_size
            return total
        return self.size * DTYPES[self.dtype].bytes if self.dtype in DTYPES else 0

    def __str__(self) -> str:
        if self.elements is not None:
            return "(" + ", ".join(map(str, self.elements)) + ")"
        dims = [("<=" if i in self.bounded else "") + str(d) for i, d in enumerate(self.dims)]
        return f"{self.dtype}[{','.join(dims)}]"
