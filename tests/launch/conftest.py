"""Fixtures of the launch library's tests: a driver that is not there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from stitchcore.runtime.cuda_library import CudaLibrary
from tests.launch.standin_cuda import Live, Standin, open_library


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
