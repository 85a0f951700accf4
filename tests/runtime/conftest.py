"""The stand-in driver for whole modules, and a real GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stitchcore.errors import Refused
from stitchcore.runtime.gpu.cupy_device import CupyDevice
from tests.launch.conftest import standin, whole_standin

__all__ = ["gpu", "standin", "whole_standin"]


@pytest.fixture(autouse=True)
def _compiler(needs_nvrtc: None) -> None:
    """Every module here is compiled."""


@pytest.fixture
def gpu() -> Iterator[CupyDevice]:
    try:
        device = CupyDevice()
    except Refused as refused:
        pytest.skip(f"{refused}")
    yield device
    device.close()
