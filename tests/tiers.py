"""Which cases of a long list `make quick` and `make test` take; `make test-all` takes all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(*kept: object, of: Iterable[object]) -> list[Any]:
    """Parameters of all cases; those not kept are not in `make quick`."""
    return _marked(pytest.mark.slow, kept, of)


def nightly_but(*kept: object, of: Iterable[object]) -> list[Any]:
    """Parameters of all cases; those not kept are run by night."""
    return _marked(pytest.mark.nightly, kept, of)


def _marked(
    mark: pytest.MarkDecorator, kept: tuple[object, ...], of: Iterable[object]
) -> list[Any]:
    cases = list(of)
    assert set(kept) <= set(cases), "a case that is kept is none"
    return [case if case in kept else _parameter(case, mark) for case in cases]


def _parameter(case: object, mark: pytest.MarkDecorator) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
