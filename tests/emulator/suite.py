"""Kernels that the mutation suite changes and the clean runs repeat: what the project's own
scheduler makes for a GPU, at sizes where every block runs several tasks.

softmax, its gradient, layer normalisation with a column sum, Adam with a global norm, losses,
transposes and reductions of rows, columns and whole arrays, from the workload modules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.module import buffers
from stitchcore.verify.reference import telling
from tests.emulator import kernels, twins
from tests.emulator.launch import Array

MODULES = ("softmax_grad", "layernorm_gelu_grad", "mlp_train", "lstm_lm_train", "crnn_infer")


@dataclass(frozen=True)
class Case:
    """A kernel, its text alone in a translation unit, and inputs."""

    name: str
    kernel: Kernel
    text: str
    inputs: Sequence[Array]

    @property
    def synchronises(self) -> bool:
        """Whether anything in it keeps threads of a block or blocks apart."""
        return "__syncthreads" in self.text or len(self.kernel.phases) > 1


@functools.cache
def cases(module: str) -> tuple[Case, ...]:
    """The kernels of one workload module."""
    made = []
    for twin in twins.twins_of(module):
        _, arrays, _ = telling(twin.module, {}, 0)
        inputs = buffers(twin.kernel, arrays, {})
        text = kernels.rendered([twin.kernel])
        made.append(Case(f"{module} {twin.kernel.name}", twin.kernel, text, inputs))
    return tuple(made)
