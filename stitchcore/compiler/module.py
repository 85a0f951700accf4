"""What the stages made of a module, as data: the plan, its distinct kernels, and their binaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stitchcore.device.records import Device
from stitchcore.errors import Refusal
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir.instruction import Computation
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain.c_compiler import CompiledLibrary
from stitchcore.toolchain.launch_bounds import Fit
from stitchcore.toolchain.nvrtc import CompiledProgram


@dataclass(frozen=True)
class Unit:
    """A translation unit: its kernels, source and binary (a shared object, or a cubin, and then how
    each kernel fits its GPU)."""

    kernels: tuple[Kernel, ...]
    source: str
    binary: CompiledLibrary | CompiledProgram
    fits: tuple[Fit, ...] = ()

    @property
    def library(self) -> CompiledLibrary:
        """The binary of a unit for a CPU."""
        assert isinstance(self.binary, CompiledLibrary)
        return self.binary


REFUSED = -1
"""The unit of a kernel that has none."""


@dataclass(frozen=True)
class CompiledKernel:
    """A distinct kernel: its content key, loop IR and the unit that exports `kernel.name`, or
    REFUSED."""

    key: str
    kernel: Kernel
    unit: int


@dataclass(frozen=True)
class CompiledKernels:
    """Kernels of any number of modules, by key; their units; and why others, by key, have none."""

    kernels: Mapping[str, CompiledKernel]
    units: tuple[Unit, ...]
    refused: Mapping[str, Refusal]


@dataclass(frozen=True)
class CompiledModule:
    """`of[i]` is the kernel of `plan.patterns[i]`; equal patterns share one. `inner` is the same
    for the plans of loop bodies and branches, at any depth.

    `refused` are kernels that have no binary, by name. `seconds` are wall times by stage.
    """

    plan: Plan
    device: Device
    kernels: tuple[CompiledKernel, ...]
    of: tuple[int, ...]
    units: tuple[Unit, ...]
    refused: tuple[Refusal, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    inner: Mapping[Computation, tuple[int, ...]] = field(default_factory=dict)

    @property
    def module(self) -> Module:
        return self.plan.module

    def kernels_of(self, plan: Plan) -> tuple[int, ...]:
        """The kernel of each pattern of `plan`: the entry's, or a loop body's."""
        return self.of if plan is self.plan else self.inner[plan.module.entry]

    def uses(self) -> list[tuple[Plan, Pattern]]:
        """A pattern that each kernel is of, and its plan: the entry's, or a loop body's."""
        first: dict[int, tuple[Plan, Pattern]] = {}
        for plan in (self.plan, *bodies(self.plan).values()):
            for number, pattern in zip(self.kernels_of(plan), plan.patterns, strict=True):
                first.setdefault(number, (plan, pattern))
        return [first[number] for number in range(len(self.kernels))]
