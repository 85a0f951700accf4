"""TensorFlow's meaning is kept by every allow-listed operation, on ordinary and on edge inputs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from stitchcore.tensorflow import op_allowlist, semantics
from tests.tensorflow import conformance
from tests.tensorflow.conformance_cases import Case, is_covered

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(op_allowlist.ALLOWED))
def test_operation_means_what_tensorflow_computes(operation: str) -> None:
    assert is_covered(operation), f"no case for {operation}: add it to conformance_cases.py"
    findings = conformance.anywhere(operation)
    wrong = {f.case.name: f.differences for f in findings if not f.holds}
    assert not wrong
    assert any(f.stitched for f in findings), "TensorFlow has no kernel for any of its types"


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(n for n, k in semantics.REWRITES if k == "cpu"))
def test_rewrite_is_needed(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its rewrite the lowering differs: the table can fail, and no rewrite is idle."""
    monkeypatch.delitem(semantics.REWRITES, (operation, "cpu"))
    assert not all(f.holds for f in conformance.findings(operation) if not f.absent)


def test_a_difference_is_found() -> None:
    case = Case("Exp", ("float32",), ((4,),))
    one = np.array([1.0, np.nan, np.inf, 0.0], np.float32)
    for changed in ([1.00001, np.nan, np.inf, 0.0], [1.0, 0.0, np.inf, 0.0], [1.0, np.nan, 9, 0]):
        assert conformance.compare(case, [one], [np.array(changed, np.float32)]) != "equal"
    assert conformance.compare(case, [one], [one.copy()]) == "equal"
    assert conformance.compare(case, [one], [one.astype(np.float64)]) != "equal"
    assert conformance.compare(case, "InvalidArgumentError", [one]) != "equal"


def test_document_lists_every_operation_and_no_difference() -> None:
    rows = re.findall(r"^\| (\w+) \| .* \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {name for name, _ in rows} - {"operation"} == set(op_allowlist.ALLOWED)
    assert [row for row in rows if row[1] and row[0] != "operation"] == []


def test_wrong_kernels_are_found() -> None:
    """The kernels of another operation fail, and only them: the lowering is still right."""
    right, wrong = (Case(name, ("float32",), ((6, 8),)) for name in ("Neg", "Abs"))
    right_forms, other = conformance.forms(right), conformance.forms(wrong)
    assert not isinstance(right_forms, str) and not isinstance(other, str)
    kernels = conformance.by_kernels([form.module for form in other.values()])
    finding = conformance.check(right, right_forms, dict(zip(right_forms, kernels, strict=True)))
    assert set(finding.lowered.values()) == {"equal"}
    assert finding.stitched["ordinary"] != "equal" and not finding.holds
