"""What the kernels of a cubin compute, without a GPU: their CUDA text, run by the emulator.

The text is the one that NVRTC was given. A worker leaves it in its dump (STITCH_DUMP), in the stage
`emit`; the fake driver asks for the library of the kernels that it was given.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from stitchcore.compiler.restart import UNIT_HEADER
from tests.emulator import program


def library_of(names: Collection[str], dump: Path) -> Path:
    """A library with the kernels `names`. Raises LookupError where no text in `dump` has them."""
    for path in sorted(dump.rglob("*_emit.cu")):
        for unit in path.read_text().split(UNIT_HEADER):
            text = unit.partition("\n")[2]
            if set(names) <= set(program.kernel_names(text)):
                return program.compile_text(text, look=program.Look.UNCHECKED).library
    raise LookupError(f"no text of kernels {', '.join(names)} in {dump}")
