"""The reference pages say what the code says, and a reason can be looked up wherever it is told."""

from __future__ import annotations

from click.testing import CliRunner

from stitchcore.cli.main import stitch
from stitchcore.errors import Reason
from stitchcore.report.reasons import MEANINGS, MENDS, PAGE
from tools import reference


def test_the_pages_are_what_the_code_says() -> None:
    assert not reference.stale(), "python -m tools.reference"


def test_every_reason_says_what_it_means_and_what_to_do() -> None:
    assert set(MEANINGS) == set(MENDS) == set(Reason)
    assert not [text for text in (*MEANINGS.values(), *MENDS.values()) if text[-1] in ". "]
    text = (reference.ROOT / PAGE).read_text()
    for reason in Reason:
        assert f"\n### {reason.value}\n" in text
        told = CliRunner().invoke(stitch, ["explain", reason.value])
        assert told.exit_code == 0 and MENDS[reason] in told.output


def test_a_row_of_two_lines_is_one_row() -> None:
    told = "| a | b |\n|---|---|\n| X | one |\n|   | and two |\nno row"
    assert reference.table(told) == "| a | b |\n|---|---|\n| X | one and two |"
