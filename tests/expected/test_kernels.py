"""Kernels, launches, bytes moved and lines of source of the workloads are those of the table."""

from __future__ import annotations

import pytest

from tests import tiers
from tests.expected import __main__ as expected
from tools.fingerprint import TARGETS, names

SLICE = tuple(name for name in names() if "." not in name)
"""Those of `make test`: each step at one batch size."""


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", tiers.nightly_but(*SLICE, of=names()))
def test_a_workload_is_compiled_as_before(name: str, target: str) -> None:
    """What differs on purpose is written by `python -m tests.expected`, and its commit says so."""
    assert expected.row(name, target) == expected.read()[name, target]


@pytest.mark.parametrize("target", TARGETS)
def test_lost_fusion_is_seen(target: str) -> None:
    assert expected.row("softmax_grad", target, "single") != expected.read()["softmax_grad", target]


def test_the_table_is_of_every_workload_and_fusion_saves_bytes() -> None:
    rows = expected.read()
    assert list(rows) == [(name, target) for name in names() for target in TARGETS]
    for row in rows.values():
        planned, unfused = (int(cell.replace(",", "")) for cell in row[4:6])
        assert planned < unfused, row
