"""Convolutions by PyTorch, which has cuDNN: the one part of the GPU runtime that needs it."""

from __future__ import annotations

from typing import Any

from stitchcore.runtime.gpu.library.convolution import Convolution, Kind

Tensor = Any


def convolve(spec: Convolution, left: Tensor, right: Tensor) -> Tensor:
    """The result as a torch tensor in the instruction's order, for tensors in its operands'."""
    import torch

    left, right = left.permute(spec.left), right.permute(spec.right)
    axes = tuple(range(2, left.dim()))
    if spec.flip:
        right = right.flip(axes)
    if spec.kind is Kind.INPUT_GRADIENT:
        result = _by_input(spec, left, right, axes)
    else:
        left, padding = _padded(spec, left)
        if spec.kind is Kind.FILTER_GRADIENT:
            result = _by_filter(spec, left, right, padding)
        else:
            settings = spec.stride, padding, spec.dilation, False, (0,) * len(axes), spec.groups
            result = torch.ops.aten.convolution(left, right, None, *settings)
    return result.permute(spec.result)


def _padded(spec: Convolution, left: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """cuDNN pads both sides alike and never cuts: what goes beyond that is done here."""
    import torch

    both = tuple(max(0, min(pair)) for pair in zip(spec.before, spec.after, strict=True))
    rest = []
    for n in reversed(range(len(both))):
        rest += [spec.before[n] - both[n], spec.after[n] - both[n]]
    return (torch.nn.functional.pad(left, rest) if any(rest) else left), both


def _by_input(spec: Convolution, left: Tensor, right: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The left operand dilated by `stride`: what a transposed convolution is. Its filter is read
    backwards, and its padding counts from the whole overlap of filter and operand."""
    import torch

    spans = [d * (right.shape[axis] - 1) for d, axis in zip(spec.dilation, axes, strict=True)]
    cut = [span - pad for span, pad in zip(spans, spec.before, strict=True)]
    more = [after - before for before, after in zip(spec.before, spec.after, strict=True)]
    weight = right.flip(axes).transpose(0, 1)
    count = len(axes)
    whole = torch.ops.aten.convolution(
        left, weight, None, spec.stride, (0,) * count, spec.dilation, True, (0,) * count, 1
    )
    sides = []
    for n in reversed(range(count)):
        sides += [-cut[n], more[n] - cut[n]]
    return torch.nn.functional.pad(whole, sides)


def _by_filter(spec: Convolution, left: Tensor, right: Tensor, padding: tuple[int, ...]) -> Tensor:
    """Batch and features exchanged: [features, batch] by [outputs, batch] sums over the batch, as
    the gradient of a filter does. The window's stride is the filter's dilation, and the reverse."""
    import torch

    seen, gradient = left.transpose(0, 1), right.transpose(0, 1)
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            left.shape[2:], padding, spec.dilation, right.shape[2:], spec.stride, strict=True
        )
    ]
    weight = torch.empty((right.shape[0], left.shape[0], *sizes), dtype=left.dtype, device="meta")
    weight = torch.empty_like(weight, device=left.device)  # only its shape is read
    count = len(sizes)
    settings = spec.dilation, padding, spec.stride, False, (0,) * count, 1, (False, True, False)
    gradients = torch.ops.aten.convolution_backward(gradient, seen, weight, None, *settings)[1]
    # the window may stop short of the padded edge: the gradient then has that many places
    return gradients.transpose(0, 1)
