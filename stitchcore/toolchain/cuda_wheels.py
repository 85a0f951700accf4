"""Where NVIDIA's wheels put their libraries: no loader looks there by itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def folders(name: str) -> list[Path]:
    """Those with the library of the wheel `name` (cublas, cuda_nvrtc): a wheel of CUDA 12 has a
    package of its own, those of CUDA 13 share one."""
    found: list[Path] = []
    for package in (f"nvidia.{name}", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        if spec is not None and spec.submodule_search_locations is not None:
            found += [Path(location) / "lib" for location in spec.submodule_search_locations]
    return found
