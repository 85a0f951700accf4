"""Cumsum as it is lowered and stitched: TensorFlow's own sums, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from tests.tensorflow import conformance
from tests.tensorflow.conformance_cases import Case


@pytest.mark.parametrize(("dims", "axis"), [((4, 9000), 1), ((9000, 70), 0), ((2, 900, 5), 1)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_long_sums(dims: tuple[int, ...], axis: int, exclusive: bool, reverse: bool) -> None:
    """An order of its own would leave other roundings: a few hundred units of the last place."""
    attributes = {"exclusive": exclusive, "reverse": reverse}
    case = Case("Cumsum", ("float32",), (dims,), attributes, (np.int32(axis),))
    sum_forms = conformance.forms(case)
    assert not isinstance(sum_forms, str)
    form = sum_forms[dims,]
    [kernels] = conformance.by_kernels([form.module])
    arguments = [np.random.default_rng(0).random(dims).astype(np.float32)]
    by_evaluation = conformance.by_evaluation(form.module)
    [expected, result, evaluated] = (
        program(arguments)[0] for program in (form.original, kernels, by_evaluation)
    )
    assert np.array_equal(expected, result) and np.array_equal(expected, evaluated)
