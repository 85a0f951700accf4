"""The ceiling of a job: its step with all memory-intensive operations free.

    python -m bench.zoo.ceiling STORE KEY CEILING

For each request of a job in STORE an artifact goes to the store CEILING that replaces all that can
be lowered, as the job's own does, by launches that allocate their outputs and return at once. What
stays costs what it costs: the executor, matrix products and convolutions (those that the product
computes in kernels of its own, too), and what has no lowering. Nothing is judged, timed or dropped
for memory, so that the ceiling does not hang on what became of the job's own artifact. The numbers
of such a step are garbage: it is for timing alone, in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from stitchcore.artifact import package
from stitchcore.artifact.manifest import Manifest
from stitchcore.artifact.sign import load_or_create_key
from stitchcore.artifact.store import Store, open_store
from stitchcore.codegen.source import index_text
from stitchcore.compiler import pipeline
from stitchcore.device.records import DEVICES
from stitchcore.errors import Refused
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.optimize.pipeline import STAGES, RequestState, key_of, refuse
from stitchcore.optimize.request import read_request
from stitchcore.options import Options
from stitchcore.toolchain.c_compiler import CompiledLibrary, find_compiler

TAKEN = frozenset({"partition", "lower", "build", "patch"})
"""Stages. Without `fallback` a launch has nothing to be compared with, so that no job does."""
NO_BINARY = CompiledLibrary(b"", "", ())


def idle(kernels: Iterable[Kernel]) -> str:
    """C of kernels of the same names that return at once. Integers and truth values of theirs are
    zeros, or stay what they were where input and output are one memory: what is left of the step
    may look something up by them."""
    lines = ["#include <string.h>"]
    for kernel in kernels:
        inputs, outputs = kernel.with_role(Role.INPUT), kernel.with_role(Role.OUTPUT)
        sources = {output: source for source, output in kernel.aliases}
        lines += [
            f"long {kernel.name}(void *const *buffers, const long *symbols, char *scratch,"
            " long phase, long task_begin, long task_end) {",
            "(void)buffers; (void)symbols; (void)scratch; (void)task_end;",
            "if (phase != 0 || task_begin != 0) return 0;",
        ]
        for position, symbol in enumerate(kernel.symbols):
            lines.append(f"const long {symbol} = symbols[{position}]; (void){symbol};")
        for number, output in enumerate(outputs):
            if DTYPES[output.dtype].kind == "float":
                continue
            buffer = f"buffers[{len(inputs) + number}]"
            apart = f"if ({buffer} != buffers[{sources[number]}]) " if number in sources else ""
            lines.append(f"{apart}memset({buffer}, 0, {index_text(bytes_of(output))});")
        lines.append("return 0; }")
    return "\n".join(lines) + "\n"


def _library(text: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "idle.so"
        command = [*find_compiler().command, "-O2", "-fPIC", "-shared", "-xc", "-"]
        subprocess.run([*command, "-o", str(library)], input=text.encode(), check=True)
        return library.read_bytes()


def _none(sources: Sequence[str]) -> list[CompiledLibrary]:
    """In place of binaries of kernels that nobody will run."""
    return [NO_BINARY] * len(sources)


def publish(request: Path, ceiling: Store, options: Options) -> None:
    """The request's artifact of launches that do nothing, in the store `ceiling`, under the key
    that a job with `options` expects. Raises Refused."""
    parsed = read_request(request)
    device = DEVICES[parsed.meta["target"]]
    key = key_of(parsed, device, options)
    apart = replace(options, without=(Mechanism.GEMM.value,))
    state = RequestState(parsed, device, apart, lambda *_: None, remote_compile=_none)
    state = pipeline.run([stage for stage in STAGES if stage.name in TAKEN], state)
    assert state.compiled is not None
    assert state.patch is not None
    units: defaultdict[int, list[Kernel]] = defaultdict(list)
    for kernel in state.compiled.kernels.values():
        units[kernel.unit].append(kernel.kernel)
    libraries = tuple(_library(idle(units[n])) for n in range(len(state.compiled.libraries)))
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
