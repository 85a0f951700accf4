"""What is rendered is what was looked at: `python -m tests.helm.golden` writes it anew."""

from __future__ import annotations

import re

import pytest

from tests.helm import golden
from tests.helm.charts import CHART, COMBINATIONS


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_what_is_rendered_is_what_is_kept(combination: str) -> None:
    kept = golden.file_of(combination).read_text(encoding="utf-8")
    assert kept == golden.content(combination)


def test_there_is_a_file_of_each_and_no_other() -> None:
    assert set(golden.FOLDER.iterdir()) == set(map(golden.file_of, COMBINATIONS))


def test_the_scenarios_of_the_readme_are_among_them() -> None:
    rows = re.findall(r"\[([a-z-]+)\]\(ci/", (CHART / "README.md").read_text(encoding="utf-8"))
    assert len(rows) >= 8 and set(rows) <= set(COMBINATIONS)
