"""The lists of pinned packages: whole, by hash, and what pyproject.toml asks for today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images import lock
from images.catalogue import ROOT, TENSORFLOWS

PIN = re.compile(r"([a-z0-9._-]+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})\n")
WANTED = {str(path.relative_to(ROOT)): asked for path, asked in lock.wanted()}


def pins(path: Path) -> dict[str, str]:
    """Version by name; nothing else may be in the file."""
    text = path.read_text().removeprefix(lock.HEADER)
    assert PIN.sub("", text) == ""
    return {str(canonicalize_name(found[1])): found[2] for found in PIN.finditer(text)}


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_list_has_all_that_is_asked_for(name: str) -> None:
    """Else: `python -m images lock`."""
    found = pins(ROOT / name)
    for text in WANTED[name]:
        asked = Requirement(text)
        assert found.get(canonicalize_name(asked.name), "0") in asked.specifier, text


def test_there_is_a_list_for_every_tensorflow() -> None:
    lists = {path.stem for path in (ROOT / "images" / "worker").glob("tf*.txt")}
    assert lists == {f"tf{minor}{more}" for minor in TENSORFLOWS for more in ("", "-cuda12")}


def test_native_files_are_made_for_the_releases_that_workers_have() -> None:
    lines = (ROOT / "images" / "runtime" / "tensorflow.txt").read_text().splitlines()
    headers = [re.fullmatch(r"tensorflow-cpu==(\S+) --hash=sha256:[0-9a-f]{64}", x) for x in lines]
    versions = [pins(ROOT / f"images/worker/tf{m}.txt")["tensorflow-cpu"] for m in TENSORFLOWS]
    assert [found and found[1] for found in headers] == versions


@pytest.mark.parametrize("minor", TENSORFLOWS)
def test_a_list_with_cuda_has_the_tensorflow_that_runs_on_gpus(minor: str) -> None:
    """And what that opens by name: a library that is not there means no GPU, and no error."""
    plain, cuda = (pins(ROOT / f"images/worker/tf{minor}{one}.txt") for one in ("", "-cuda12"))
    assert cuda.pop("tensorflow", None) == plain.pop("tensorflow-cpu")
    assert "tensorflow-cpu" not in cuda
    assert {name: cuda[name] for name in plain} == plain, "what else is there is the same"
    ours = {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12"}
    assert ours | {f"nvidia-{name}-cu12" for name in OPENED} <= set(cuda) - set(plain)
    major = "9" if int(minor.partition(".")[2]) >= 18 else "8"
    assert cuda["nvidia-cudnn-cu12"].split(".")[0] == major


OPENED = "cublas cuda-cupti cuda-runtime cudnn cufft curand cusolver cusparse nccl".split()


def test_libraries_are_asked_for_within_a_major_version() -> None:
    """So that one NVRTC serves TensorFlow and us; cuDNN 9 would not do for what asked for 8."""
    requires = [
        "numpy<2", "nvidia-cudnn-cu12 (==8.9.4.25) ; extra == 'and-cuda'",
        'nvidia-cuda-nvrtc-cu12<13.0,>=12.5.82; extra == "and-cuda"',
    ]  # fmt: skip
    asked = ["nvidia-cudnn-cu12>=8.9.4.25,<9", "nvidia-cuda-nvrtc-cu12>=12.5.82,<13"]
    assert lock.cuda_libraries(requires) == asked
