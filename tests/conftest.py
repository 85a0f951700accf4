"""What holds for all tests: the order in which two processes take their files, kernels checked
after each pass of the scheduler, and NVRTC."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from stitchcore.errors import Refused
from stitchcore.toolchain import nvrtc

os.environ.setdefault("STITCH_VERIFY_PASSES", "1")  # of jobs and commands that tests start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests come first (a file is one process's, with `--dist loadfile`):
    a long one that is begun last would leave the other process idle."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") is not None)
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session")
def needs_nvrtc() -> None:
    """NVRTC is an extra (cuda12): CI has it, a machine that only stitches for CPUs need not."""
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")
