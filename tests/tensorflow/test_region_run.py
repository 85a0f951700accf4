"""A region's reference calls."""

from __future__ import annotations

from typing import cast

import numpy as np

from stitchcore.tensorflow.lower import Subgraph
from stitchcore.tensorflow.region_run import empty


def test_the_empty_call_of_a_region_without_inputs() -> None:
    """A region of constants alone has no argument to hand back."""
    call = empty(cast(Subgraph, None))  # it reads nothing of the region
    assert call([]) == []
    assert np.array_equal(call([np.ones(3, np.float32), np.zeros(2)])[0], np.ones(3))
