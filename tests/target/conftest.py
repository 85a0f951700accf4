"""Fixtures of the launch library's tests: a driver that is not there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from stitchcore.errors import Refused
from stitchcore.target import nvrtc
from stitchcore.target.cuda_launch import CudaLibrary
from tests.target.standin_cuda import Live, Standin, open_library


@pytest.fixture
def needs_nvrtc() -> None:
    """NVRTC is an extra (cuda12): CI has it, a machine that only stitches for CPUs need not."""
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")


@pytest.fixture(scope="session")
def whole_standin() -> Standin:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    return Standin()


@pytest.fixture
def standin(whole_standin: Standin) -> Iterator[Standin]:
    """A device sm_90 of four multiprocessors. Whoever uses it does nothing wrong, leaks nothing."""
    whole_standin.devices()
    whole_standin.fail(0)
    whole_standin.on_launch(None)
    whole_standin.free_memory(1 << 30)
    whole_standin.do("cuInit", 0)  # as the framework has done
    whole_standin.calls()
    yield whole_standin
    whole_standin.fail(0)
    assert whole_standin.errors() == []
    assert whole_standin.live() == Live()


@pytest.fixture
def cuda(standin: Standin) -> Iterator[CudaLibrary]:
    library = open_library(standin)
    yield library
    library.close()
