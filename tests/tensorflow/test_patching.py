"""What a patch does not show from outside: the order of launches around a variable."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from stitchcore.artifact.launch import FromLaunch, FromRegion, Launch, Operand
from stitchcore.tensorflow.patching import after


def launch(*sources: Any) -> Launch:
    kernel: Any = None  # not asked for
    return Launch("key", kernel, 0, tuple(Operand(source, ()) for source in sources), 0, 0)


def test_launches_after_another_are_found_through_others() -> None:
    launches = [
        launch(FromRegion(0)),
        launch(FromLaunch(0, 0)),
        launch(FromRegion(1)),
        launch(FromLaunch(2, 0), FromLaunch(1, 1)),
    ]
    assert after(launches, 0) == {1, 3}
    assert after(launches, 1) == {3}
    assert after(launches, 2) == {3}
    assert after(launches, 3) == frozenset()
