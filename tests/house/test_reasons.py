"""Reasons are a closed list: both sides have the same, every one is used, and none is made up."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from stitchcore.errors import Reason
from stitchcore.inject import reasons as job_side

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "stitchcore", ROOT / "operator", ROOT / "worker"]


def test_the_job_side_knows_no_other_reason() -> None:
    named = {
        value for name, value in vars(job_side).items() if name.isupper() and isinstance(value, str)
    }
    assert named
    assert named <= {reason.value for reason in Reason}


def test_values_are_the_names_in_lower_case() -> None:
    assert [reason.value for reason in Reason] == [reason.name.lower() for reason in Reason]


@pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.name)
def test_every_reason_is_given_by_some_code(reason: Reason) -> None:
    found = (path for package in PACKAGES for path in package.rglob("*.py"))
    sources = (path for path in found if path.name not in ("errors.py", "reasons.py"))
    assert any(reason.name in _names(path) for path in sources), "no code refuses for this reason"


@functools.cache
def _names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
