"""Inductor as an entrant: the translated module through torch.compile, as its users have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.gpu.entrants import INDUCTOR, Array, Entrant
from bench.gpu.inductor import function
from stitchcore.hlo.ir.module import Module


def inductor(module: Module, given: Sequence[Array], device: str) -> Entrant:
    """Compiled with Inductor's own defaults, TF32 products as on all sides. Each step goes on from
    the parameters that the last one made.

    Raises NotExpressed for a module without a translation, ImportError without PyTorch.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    compiled = torch.compile(function(module, torch, device))
    tensors = [torch.from_numpy(np.ascontiguousarray(one)).to(device) for one in given]
    last: list[Any] = []

    def step() -> None:
        with torch.no_grad():
            last[:] = compiled(*tensors)
        for output, parameter in module.aliases:
            tensors[parameter] = last[output]
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    return Entrant(INDUCTOR, step, [one.cpu().numpy() for one in last])
