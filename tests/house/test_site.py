"""The docs as a site: a section for each row of the map, lists as lists, and no dead link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import site

ROOT = Path(__file__).resolve().parents[2]


def test_each_row_of_the_map_is_a_section_with_its_pages() -> None:
    found = {name: pages for one in site.navigation() for name, pages in one.items()}
    assert list(found) == [
        *("start", "guides", "reference", "operate", "internals", "benchmarks", "papers"),
    ]
    assert found["start"][0] == {"stitchcore": "README.md"}
    assert {"Keras": "docs/keras.md"} in found["guides"]
    [runbooks] = [one["runbooks"] for one in found["operate"] if "runbooks" in one]
    assert {"webhook": "docs/runbooks/webhook.md"} in runbooks


def test_a_list_stands_apart_from_the_text_before_it() -> None:
    text = "Look:\n* one\n  more\n* two\n\ntext\n```\na\n- b\n```\n1. first\n2. second\n"
    assert site.apart(text) == (
        "Look:\n\n* one\n  more\n* two\n\ntext\n```\na\n- b\n```\n\n1. first\n2. second\n"
    )


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """MkDocs over what was staged in `folder`."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(folder / "mkdocs.yml"),
    ]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_it_is_built_and_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="MkDocs Material is missing: pip install -e '.[test]'")
    site.staged(tmp_path)
    done = built(tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "docs" / "runbooks" / "webhook.html").read_text()
    assert "<li><code>kubectl logs" in page and 'id="stitchwebhookerrors"' in page
    for path in (tmp_path / "html").rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img)[^>]*(?:src|href)=\"https?:[^>]*", path.read_text()
        )
        assert not fetched, "a site without a network asks nobody"
    shutil.rmtree(tmp_path / "html")
    one = tmp_path / "pages" / "docs" / "keras.md"
    for target in ("absent", "reasons"):
        link = f"{target}.md#no_such"
        whole = one.read_text()
        one.write_text(f"{whole}\n[dead]({link})\n")
        done = built(tmp_path)
        assert done.returncode != 0 and link in done.stderr
        one.write_text(whole)
