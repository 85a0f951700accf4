"""Inductor as an entrant: the translated module through torch.compile, as its users have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.gpu.entrants import INDUCTOR, Array, Entrant
from bench.gpu.inductor import function
from stitchcore.hlo.module import Module


def inductor(module: Module, given: Sequence[Array], device: str) -> Entrant:
    """Compiled with Inductor's own defaults, TF32 products as on all sides. The kernels it launches
    are those of one profiled step.

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
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    outputs = [lambda: [one.cpu().numpy() for one in last]]
    return Entrant(INDUCTOR, step, None, outputs[0], *_launches(torch, step))


def _launches(torch: Any, step: Any) -> tuple[int, int]:
    """Kernels and library calls of one step, by PyTorch's profiler."""
    from bench.gpu.trace import CONTRACTION

    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        step()
    names = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    library = sum(bool(CONTRACTION.search(name)) for name in names)
    return len(names) - library, library
