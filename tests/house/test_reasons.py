"""Reasons are a closed list: both sides have the same, every one is used, and none is made up."""

from __future__ import annotations

import ast
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


@pytest.mark.slow
def test_every_reason_is_given_by_some_code() -> None:
    paths = (path for package in PACKAGES for path in package.rglob("*.py"))
    sources = [path for path in paths if path.name not in ("errors.py", "reasons.py")]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sources)
    names = {
        node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    assert not {reason.name for reason in Reason} - names, "no code refuses for these reasons"
