"""Which cases of a long list `make test` takes; the others are `make test-all`'s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def nightly_but(*kept: object, of: Iterable[object]) -> list[Any]:
    """Parameters of all cases; those not kept are run by night."""
    cases = list(of)
    assert set(kept) <= set(cases), "a case that is kept is none"
    return [case if case in kept else _nightly(case) for case in cases]


def _nightly(case: object) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
