"""What is rendered is what was looked at: `python -m tests.helm.golden` writes it anew."""

from __future__ import annotations

import re

import pytest

from tests.helm import golden
from tests.helm.charts import CHART, COMBINATIONS

MADE = golden.files()


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.stem))
def test_what_is_rendered_is_what_is_kept(path: golden.Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path]


def test_there_is_a_file_of_each_and_no_other() -> None:
    assert set(golden.FOLDER.iterdir()) == set(MADE)
    assert {path.stem for path in MADE} == set(COMBINATIONS)


def test_the_scenarios_of_the_readme_are_among_them() -> None:
    rows = re.findall(r"\[([a-z-]+)\]\(ci/", (CHART / "README.md").read_text(encoding="utf-8"))
    assert len(rows) >= 8 and set(rows) <= set(COMBINATIONS)
