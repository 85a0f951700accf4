"""A convolution as PyTorch's cuDNN calls name it: forward, by its input, or by its filter.

XLA writes gradients as convolutions too: by the input with a dilated left operand, by the filter
with batch and features exchanged and a window as large as the output's gradient. cuDNN has its own
kernels for both, so they are told apart here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction


class Kind(Enum):
    """Which of cuDNN's three a convolution is."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input gradient"
    FILTER_GRADIENT = "filter gradient"


@dataclass(frozen=True)
class Convolution:
    """`left` and `right` bring the operands' dimensions to [batch, features, spatial...] and
    [output features, input features, spatial...], `result` takes [batch, features, spatial...] to
    the instruction's own order. `flip` says that the filter is read backwards first. Padding is
    before each spatial dimension and after it (which may be more, or less)."""

    kind: Kind
    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    flip: bool
    groups: int


def known(dim: Dim) -> int:
    """A dimension of a module whose sizes are known."""
    assert isinstance(dim, int)
    return dim


def refused(node: Instruction) -> str | None:
    """Why PyTorch's calls do not make `node`, or None."""
    window: tuple[WindowDim, ...] = node["window"]
    if node.get("batch_group_count", 1) != 1:
        return "a convolution in batch groups"
    if len({d.reversed for d in window}) > 1:
        return "a window that is reversed in some dimensions"
    dilated = any(d.lhs_dilate != 1 for d in window)
    if dilated and any(d.stride != 1 for d in window):
        return "a strided window over a dilated operand"
    if dilated and node.get("feature_group_count", 1) != 1:
        return "a gradient by the input in groups"
    if len(window) > 3:
        return "more than three spatial dimensions"
    return None


def convolution(node: Instruction) -> Convolution:
    """`node` in these terms; `refused(node)` must be None."""
    left, right, result = re.split(r"_|->", node["dim_labels"])
    spatial = "".join(str(axis) for axis in range(len(left) - 2))
    window: tuple[WindowDim, ...] = node["window"]
    kind = _kind(node, window, result)
    stride = tuple(d.lhs_dilate if kind is Kind.INPUT_GRADIENT else d.stride for d in window)
    return Convolution(
        kind,
        tuple(left.index(label) for label in "bf" + spatial),
        tuple(right.index(label) for label in "oi" + spatial),
        tuple(("bf" + spatial).index(label) for label in result),
        stride,
        tuple(d.rhs_dilate for d in window),
        tuple(known(d.pad_low) for d in window),
        tuple(known(d.pad_high) for d in window),
        any(d.reversed for d in window),
        node.get("feature_group_count", 1),
    )


def _kind(node: Instruction, window: tuple[WindowDim, ...], result: str) -> Kind:
    if any(d.lhs_dilate != 1 for d in window):
        return Kind.INPUT_GRADIENT
    outputs = [node.shape.static[result.index(str(axis))] for axis in range(len(window))]
    larger = any(known(d.size) > n for d, n in zip(window, outputs, strict=True))
    plain = node.get("feature_group_count", 1) == 1 and not any(d.reversed for d in window)
    return Kind.FILTER_GRADIENT if larger and plain else Kind.FORWARD
