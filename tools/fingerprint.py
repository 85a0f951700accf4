"""What the compiler makes of every workload, as hashes: equal before and after a change that moves
code without changing kernels.

    python -m tools.fingerprint --out before.json
    python -m tools.fingerprint --compare before.json

Each module of tests/workloads goes through the stages up to `emit`, for one CPU and one GPU record
(fixed ones, so that machines agree; neither a GPU nor NVRTC is needed), batched as a module and as
a job. Hashed are the simplified HLO, plan, kernels, sources and launch tables (without cubins).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from stitchcore.compiler.gpu_tables import launch_table_of
from stitchcore.compiler.module import Unit
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import BuildOptions, ModuleState, compiled, stages_for
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.pad_bounded import padded
from stitchcore.launch.cuda_table import write
from stitchcore.runtime.gpu.lower_module import lower_module
from stitchcore.toolchain.nvrtc import CompiledProgram

WORKLOADS = Path(__file__).parents[1] / "tests" / "workloads"
TARGETS = ("cpu-x86-64-v4", "sm_90")


def workload(name: str) -> Module:
    """The module that the workload's text says."""
    return parse(lzma.decompress((WORKLOADS / f"{name}.hlo.xz").read_bytes()).decode())


def names() -> list[str]:
    """All workloads."""
    return sorted(path.name.removesuffix(".hlo.xz") for path in WORKLOADS.glob("*.hlo.xz"))


def fingerprint(name: str, target: str) -> dict[str, str]:
    """sha256 of each text that the stages make of a workload for a target."""
    device = DEVICES[target]
    module = workload(name) if device.kind == "cpu" else padded(workload(name))
    state = ModuleState(module, device, BuildOptions())
    texts: dict[str, str | bytes] = {}
    *planned, emit, _ = stages_for(device)
    for stage in (*planned, emit):
        state = run([stage], state)
        texts[stage.name] = stage.text(state)
    as_job = BuildOptions(remote_compile=lambda sources: [None] * len(sources))
    texts["emit, one kernel a unit"] = emit.text(emit.run(replace(state, options=as_job)))
    if device.kind == "gpu":
        program = CompiledProgram(b"", target, "", ())
        tables = (launch_table_of(kernel, program) for kernel in state.kernels)
        texts["tables of kernels"] = b"".join(tables)
        units = (Unit(state.kernels, "", program),)
        if not module.symbols:
            table = lower_module(compiled(replace(state, units=units), {})).table
            texts["table of the module"] = write(table)
    return {stage: _sha256(text) for stage, text in texts.items()}


def _sha256(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def _named(case: tuple[str, str]) -> tuple[str, dict[str, str]]:
    return " for ".join(case), fingerprint(*case)


def _differences(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]
) -> Iterable[str]:
    for case in sorted(before.keys() | after.keys()):
        old, new = before.get(case, {}), after.get(case, {})
        for stage in sorted(old.keys() | new.keys()):
            if old.get(stage) != new.get(stage):
                yield f"{case}: {stage}"


def main() -> int:
    """Print what differs from a file, or write one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--only", nargs="*", default=names())
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    made: dict[str, dict[str, str]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, hashes in pool.map(_named, product(options.only, TARGETS)):
            made[name] = hashes
            print(name, file=sys.stderr, flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    if options.compare is None:
        return 0
    before = json.loads(options.compare.read_text(encoding="utf-8"))
    before = {case: hashes for case, hashes in before.items() if case in made}
    different = list(_differences(before, made))
    print("\n".join(different) or f"{len(made)} cases, equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
