"""Writes the lists of pinned packages: every version with the hash of the one wheel that is used.

pip itself resolves (`pip install --dry-run --report`), for Python 3.11 on x86-64 Linux, wheels
only. What is asked for is in pyproject.toml's extras; only names that no extra has are here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from images.catalogue import ROOT, TENSORFLOWS

PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28")
"""Tags of x86-64 wheels that Debian 12 can load."""
CUPY = "cupy-cuda12x"
OLDER = ["async-timeout"]
"""redis asks for it before Python 3.11.3, which Debian 12 has; pip judges by the Python it runs
on. `pip check` in the Dockerfiles says when one is missing here."""
NUMPY = {"2.15": ["numpy<2"]}
"""TensorFlow 2.15 says too little of what it needs."""


def wanted() -> Iterator[tuple[Path, list[str]]]:
    """Each list's file and what it must satisfy."""
    service = [*_extra(""), *_extra("s3"), *OLDER]
    yield ROOT / "tests/cluster/dockerfiles/trainer/requirements.txt", ["tensorflow-cpu==2.21.*"]
    yield ROOT / "images/operator/requirements.txt", [*service, *_extra("operator")]
    for minor in TENSORFLOWS:
        asked = [*service, *_extra("worker"), f"tensorflow-cpu=={minor}.*", *NUMPY.get(minor, ())]
        yield ROOT / f"images/worker/tf{minor}.txt", asked
        cuda = [one.replace("tensorflow-cpu", "tensorflow") for one in asked]
        cuda += [*_extra("cuda12"), CUPY]
        yield ROOT / f"images/worker/tf{minor}-cuda12.txt", cuda


def cuda_libraries(requires: Sequence[str]) -> list[str]:
    """Of what a TensorFlow says it requires, the libraries of its build for CUDA, each from the
    version that it names up to the next major one. Releases before 2.21 name one version, which
    leaves out the NVRTC of ours; 2.21 asks as we do."""
    libraries = []
    for requirement in map(Requirement, requires):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": "and-cuda"}):
            continue
        least = min(Version(one.version) for one in requirement.specifier if one.operator[0] != "<")
        libraries.append(f"{requirement.name}>={least},<{least.major + 1}")
    return libraries


def headers() -> str:
    """The TensorFlow wheels that the runtime's native files are built against."""
    lines = []
    for minor in TENSORFLOWS:
        [found] = resolved([f"tensorflow-cpu=={minor}.*"], "--no-deps")
        lines.append(" ".join(_pinned(found)) + "\n")
    return "".join(lines)


def resolved(asked: Sequence[str], *more: str) -> list[dict[str, Any]]:
    """pip's report of what it would install. Raises CalledProcessError."""
    platforms = [f"--platform={name}_x86_64" for name in PLATFORMS]
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
        "--report=-", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
        "--target=/nowhere", *platforms, *more, *asked,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return found


def text(found: Sequence[dict[str, Any]]) -> str:
    """As pip reads it with --require-hashes."""
    pins = sorted(_pinned(one) for one in found)
    return HEADER + "".join(f"{name} \\\n    {digest}\n" for name, digest in pins)


HEADER = "# Written by `python -m images lock`.\n"


def _pinned(one: dict[str, Any]) -> tuple[str, str]:
    name = str(one["metadata"]["name"]).lower().replace("_", "-")
    digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={one['metadata']['version']}", f"--hash=sha256:{digest}"


def _extra(name: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = project["optional-dependencies"][name] if name else project["dependencies"]
    return list(found)


def _with_libraries(asked: list[str]) -> list[str]:
    builds = [one for one in asked if Requirement(one).name == "tensorflow"]
    if not builds:
        return asked
    [found] = resolved(builds, "--no-deps")
    return [*asked, *cuda_libraries(found["metadata"]["requires_dist"])]


def write() -> None:
    """All lists anew."""
    (ROOT / "images/runtime/tensorflow.txt").write_text(headers())
    for path, asked in wanted():
        path.write_text(text(resolved(_with_libraries(asked))))
        print(path.relative_to(ROOT), flush=True)
