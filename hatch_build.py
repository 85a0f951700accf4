"""Names the wheel by what is in it: with the native part it is of Linux on x86-64, and of the
oldest glibc that its libraries load on; without, it is of no platform.

The job side loads libraries by path (ctypes), so a wheel is of every Python 3; which TensorFlow
versions it serves follows from the shims that `make wheel` has built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = Path("stitchcore") / "inject" / "lib"
NEEDED = re.compile(rb"GLIBC_2\.(\d+)")


def platform_tag(libraries: list[Path]) -> str:
    """`manylinux_2_36_x86_64` (PEP 600) of libraries whose newest symbols are glibc 2.36's."""
    minor = max(int(m) for path in libraries for m in NEEDED.findall(path.read_bytes()))
    [architecture] = {path.parent.name for path in libraries}
    return f"manylinux_2_{minor}_{architecture}"


class NativePart(BuildHookInterface):  # type: ignore[type-arg, misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        libraries = sorted((Path(self.root) / LIBRARIES).glob("*/*.so"))
        if libraries and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(libraries)}"
