"""Attribute values of HLO text, both ways: one codec per attribute name."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim

Parser = Callable[[str], Hashable]
Formatter = Callable[[Any], str]


@dataclass(frozen=True)
class WindowDim:
    """One dimension of a window. Paddings may be negative; dilations are at least 1."""

    size: Dim
    stride: int = 1
    pad_low: Dim = 0
    pad_high: Dim = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1
    reversed: bool = False


def _tuple(text: str) -> tuple[Dim, ...]:
    inner = text.strip().removeprefix("{").removesuffix("}")
    return tuple(dims.parse(part.strip()) for part in inner.split(",") if part.strip())


def _format_tuple(value: tuple[Dim, ...]) -> str:
    return "{" + ",".join(map(str, value)) + "}"


_RANGE = re.compile(r"\[([^\]]*)\]")


def _slices(text: str) -> tuple[tuple[Dim, ...], ...]:
    ranges = []
    for inner in _RANGE.findall(text):
        parts = [dims.parse(part) for part in inner.split(":")]
        ranges.append(tuple(parts if len(parts) == 3 else [*parts, 1]))
    return tuple(ranges)


def _format_slices(value: tuple[tuple[Dim, ...], ...]) -> str:
    texts = [f"[{a}:{b}]" if step == 1 else f"[{a}:{b}:{step}]" for a, b, step in value]
    return "{" + ", ".join(texts) + "}"


def _padding(text: str) -> tuple[tuple[Dim, ...], ...]:
    pads = []
    for part in text.split("x"):
        numbers = [dims.parse(number) for number in part.split("_")]
        pads.append(tuple(numbers if len(numbers) == 3 else [*numbers, 0]))
    return tuple(pads)


def _format_padding(value: tuple[tuple[Dim, ...], ...]) -> str:
    return "x".join(f"{a}_{b}" if not c else f"{a}_{b}_{c}" for a, b, c in value)


def _window(text: str) -> tuple[WindowDim, ...]:
    fields = dict(part.split("=", 1) for part in text.strip("{} ").split())
    if not fields:
        return ()
    sizes = [dims.parse(part) for part in fields["size"].split("x")]

    def numbers(name: str, default: int) -> list[int]:
        return (
            [int(part) for part in fields[name].split("x")]
            if name in fields
            else ([default] * len(sizes))
        )

    pads = _padding(fields["pad"]) if "pad" in fields else ((0, 0, 0),) * len(sizes)
    flips = numbers("rhs_reversal", 0)
    return tuple(
        WindowDim(size, stride, pad[0], pad[1], left, right, bool(flip))
        for size, stride, pad, left, right, flip in zip(
            sizes,
            numbers("stride", 1),
            pads,
            numbers("lhs_dilate", 1),
            numbers("rhs_dilate", 1),
            flips,
            strict=True,
        )
    )


def _format_window(value: tuple[WindowDim, ...]) -> str:
    def joined(parts: list[Any]) -> str:
        return "x".join(map(str, parts))

    fields = [f"size={joined([d.size for d in value])}"] if value else []
    if any(d.stride != 1 for d in value):
        fields.append(f"stride={joined([d.stride for d in value])}")
    if any(d.pad_low != 0 or d.pad_high != 0 for d in value):
        fields.append(f"pad={joined([f'{d.pad_low}_{d.pad_high}' for d in value])}")
    if any(d.lhs_dilate != 1 for d in value):
        fields.append(f"lhs_dilate={joined([d.lhs_dilate for d in value])}")
    if any(d.rhs_dilate != 1 for d in value):
        fields.append(f"rhs_dilate={joined([d.rhs_dilate for d in value])}")
    if any(d.reversed for d in value):
        fields.append(f"rhs_reversal={joined([int(d.reversed) for d in value])}")
    return "{" + " ".join(fields) + "}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.strip("{} ").split(",") if part.strip())


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _format_boolean(value: bool) -> str:
    return "true" if value else "false"


_DIMENSION_LISTS = [
    "dimensions",
    "offset_dims",
    "collapsed_slice_dims",
    "start_index_map",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "slice_sizes",
    "update_window_dims",
    "inserted_window_dims",
    "scatter_dims_to_operand_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "lhs_batch_dims",
    "rhs_batch_dims",
    "lhs_contracting_dims",
    "rhs_contracting_dims",
    "dynamic_slice_sizes",
    "fft_length",
]
_INTEGERS = [
    "iota_dimension",
    "index",
    "index_vector_dim",
    "feature_group_count",
    "batch_group_count",
    "feature_index",
    "exponent_bits",
    "mantissa_bits",
    "k",
    "delta",
]
_BOOLEANS = [
    "is_stable",
    "indices_are_sorted",
    "unique_indices",
    "largest",
    "left_side",
    "lower",
    "unit_diagonal",
]
_TEXTS = [
    "direction",
    "type",
    "dim_labels",
    "distribution",
    "algorithm",
    "kind",
    "custom_call_target",
    "api_version",
    "backend_config",
    "transpose_a",
    "fft_type",
    "domain",
]

CODECS: Mapping[str, tuple[Parser, Formatter]] = {
    **dict.fromkeys(_DIMENSION_LISTS, (_tuple, _format_tuple)),
    **dict.fromkeys(_INTEGERS, (int, str)),
    **dict.fromkeys(_BOOLEANS, (_boolean, _format_boolean)),
    **dict.fromkeys(_TEXTS, (str, str)),
    "slice": (_slices, _format_slices),
    "padding": (_padding, _format_padding),
    "window": (_window, _format_window),
    "epsilon": (float, repr),
    "operand_precision": (_names, _format_tuple),
}
"""Attributes whose value is plain: (from text, to text)."""

DEFAULTS: Mapping[str, Hashable] = {
    "indices_are_sorted": False,
    "unique_indices": False,
    "is_stable": False,
    "feature_group_count": 1,
    "batch_group_count": 1,
    "operand_batching_dims": (),
    "start_indices_batching_dims": (),
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
    "lhs_batch_dims": (),
    "rhs_batch_dims": (),
    "operand_precision": ("default", "default"),
}
"""A value that HLO text may leave out is left out of the instruction when it is the default."""

COMPUTATIONS = frozenset({"to_apply", "condition", "body", "calls", "select", "scatter"})
"""Attributes that name one computation. `branch_computations` names several."""

CHECK_TARGET = "stitch.check"
"""The custom_call_target of a check in HLO text; its message is the backend_config."""

IGNORED = frozenset(
    {
        "metadata",
        "sharding",
        "frontend_attributes",
        "parameter_replication",
        "origin",
        "statistics",
        "result_accuracy",
        "original_value",
        "operand_layout_constraints",
    }
)
"""Attributes that do not change what is computed on one device."""
