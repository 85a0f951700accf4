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


def test_cuda_adds_to_a_list_and_changes_nothing_in_it() -> None:
    for minor in TENSORFLOWS:
        plain, cuda = (pins(ROOT / f"images/worker/tf{minor}{one}.txt") for one in ("", "-cuda12"))
        assert {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12"} <= set(cuda) - set(plain)
        assert {name: cuda[name] for name in plain} == plain
