"""The ceiling of a job: its step with all memory-intensive operations free.

    python -m bench.zoo.ceiling STORE KEY CEILING

For each request of a job in STORE an artifact goes to the store CEILING that replaces all that can
be lowered, as the job's own does, by launches that allocate their outputs and compute no floats.
What stays costs what it costs: the executor, matrix products and convolutions (those that the
product computes in kernels of its own, too), and what has no lowering. Nothing is judged, timed or
dropped for memory, so that the ceiling does not hang on what became of the job's own artifact. The
numbers of such a step are garbage: it is for timing alone, in a process of its own.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stitchcore.artifact import package
from stitchcore.artifact.manifest import Manifest
from stitchcore.artifact.sign import load_or_create_key
from stitchcore.artifact.store import Store, open_store
from stitchcore.codegen import c
from stitchcore.compiler import pipeline
from stitchcore.device.records import DEVICES
from stitchcore.errors import Refused
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.region_program import RegionProgram
from stitchcore.loop_ir.nodes import Kernel, Phase, Role
from stitchcore.loop_ir.visitor import buffers_of
from stitchcore.optimize.pipeline import STAGES, RequestState, key_of, refuse
from stitchcore.optimize.request import read_request
from stitchcore.options import Options
from stitchcore.toolchain.c_compiler import CompiledLibrary, compile_c

TAKEN = frozenset({"partition", "lower", "build", "patch"})
"""Stages. Without `fallback` a launch has nothing to be compared with, so that no job does."""
NO_BINARY = CompiledLibrary(b"", "", ())


def idle(kernel: Kernel) -> Kernel:
    """The kernel without what computes its floats: nothing, for most. Integers and truth values
    stay right, for what is left of the step counts, decides and looks up by them; so sections stay
    that make some, or scratch for one that does. A launch has tasks for all: the rest do nothing.
    """
    wanted = {b for b in kernel.with_role(Role.OUTPUT) if DTYPES[b.dtype].kind != "float"}
    phases: list[Phase] = []
    for phase in reversed(kernel.phases):
        kept = [section for section in phase.sections if buffers_of(section)[1] & wanted]
        wanted.update(buffer for section in kept for buffer in buffers_of(section)[0])
        phases.insert(0, Phase(tuple(kept)))
    return replace(kernel, phases=tuple(phases))


def _none(sources: Sequence[str]) -> list[CompiledLibrary]:
    """In place of binaries of kernels that nobody will run."""
    return [NO_BINARY] * len(sources)


def _without_work(
    programs: Mapping[str, RegionProgram],
) -> Iterator[tuple[str, RegionProgram]]:
    """So that no launch is given to threads for the work that its kernel had."""
    for key, program in programs.items():
        launches = tuple(replace(launch, work=0) for launch in program.launches)
        yield key, replace(program, launches=launches)


def publish(request: Path, ceiling: Store, options: Options) -> None:
    """The request's artifact of launches that do nothing, in the store `ceiling`, under the key
    that a job with `options` expects. Raises Refused."""
    parsed = read_request(request)
    device = DEVICES[parsed.meta["target"]]
    key = key_of(parsed, device, options)
    apart = replace(options, without=(Mechanism.GEMM.value,))
    state = RequestState(parsed, device, apart, lambda *_: None, remote_compile=_none)
    for stage in STAGES:
        if stage.name in TAKEN:
            state = pipeline.run([stage], state)
        if stage.name == "build":
            state = replace(state, programs=dict(_without_work(state.programs)))
    assert state.compiled is not None
    assert state.patch is not None
    units: defaultdict[int, list[Kernel]] = defaultdict(list)
    for kernel in state.compiled.kernels.values():
        units[kernel.unit].append(idle(kernel.kernel))
    libraries = tuple(
        compile_c(c.render(units[number]), device).data
        for number in range(len(state.compiled.libraries))
    )
    kernels = package.kernel_entries(state.programs.values())
    entries = package.library_entries(libraries)
    manifest = Manifest(
        key, parsed.digest, device.target, parsed.tf, "none", entries, kernels, state.patch
    )
    package.publish(ceiling, manifest, libraries, load_or_create_key(options.key), {})
    ceiling.answer(parsed.digest, {"status": "ready", "key": key, "settings": options.signature})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.zoo.ceiling", description=__doc__)
    for name in ("store", "key", "ceiling"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args(arguments)
    ceiling = open_store(str(given.ceiling))
    options = Options(given.store, given.ceiling / "cache", given.key)
    for request in sorted((given.store / "requests").iterdir()):
        try:
            publish(request, ceiling, options)
        except Refused as refused:
            refuse(ceiling, request.name, refused.refusal, {"settings": options.signature})
            print(f"{request.name[:12]}: {refused}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
