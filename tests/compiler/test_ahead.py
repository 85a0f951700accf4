"""Kernels are compiled while other regions are still planned, and only once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stitchcore.compiler.regions import compile_regions
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.hlo.text.parser import parse
from stitchcore.toolchain import c_compiler

TEXT = """HloModule m

ENTRY main {
  a = f32[64] parameter(0)
  c = f32[] constant(NUMBER)
  b = f32[64] broadcast(c), dimensions={}
  t = f32[64] tanh(a)
  ROOT r = f32[64] multiply(t, b)
}
"""


def test_a_full_unit_is_compiled_while_others_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[str] = []
    begun, before = threading.Event(), []
    compiled = c_compiler._run

    def counted(source: str, *rest: object) -> c_compiler.CompiledLibrary:
        sources.append(source)
        begun.set()
        return compiled(source, *rest)  # type: ignore[arg-type]

    def progress(stage: str, done: int, of: int) -> None:
        if stage == "compile":
            before.append(begun.wait(120))

    monkeypatch.setattr(c_compiler, "_run", counted)
    modules = {
        f"region{n}": parse(TEXT.replace("NUMBER", str(n + 2))) for n in range(c_compiler.BATCH + 1)
    }
    made = compile_regions(modules, host_device(), BuildOptions(cache=tmp_path), progress=progress)
    assert before == [True]
    assert len(made.regions) == len(made.kernels) == c_compiler.BATCH + 1
    assert len(sources) == len(set(sources)) == len(made.libraries) == 2
