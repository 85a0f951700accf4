"""Known vulnerabilities of what images are made of are found in a copy of the database."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from images import audit, sbom
from images.__main__ import main

Object = dict[str, Any]


def database(folder: Path, affected: Object, **more: Any) -> Path:
    about = {"package": {"ecosystem": "PyPI", "name": "Some_Package"}, **affected}
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as made:
        document = {"id": "PYSEC-1", "summary": "why", "affected": [about], **more}
        made.writestr("PYSEC-1.json", json.dumps(document))
    return path


def span(*events: Object) -> Object:
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


@pytest.mark.parametrize(
    ("affected", "found"),
    [
        ({"versions": ["1.10.0"]}, True),
        ({"versions": ["1.1.0"]}, False),
        (span({"introduced": "0"}), True),
        (span({"introduced": "0"}, {"fixed": "1.9"}), False),
        (span({"introduced": "0"}, {"fixed": "1.10.0"}), False),
        (span({"introduced": "0"}, {"last_affected": "1.10.0"}), True),
        (span({"introduced": "1.10.1"}), False),
        (span({"fixed": "1.2"}, {"introduced": "0"}, {"introduced": "1.9"}), True),
        (span({"introduced": "1.9"}, {"fixed": "1.10"}, {"introduced": "1.11"}), False),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False),
        ({**span({"introduced": "0"}), "package": {"ecosystem": "npm", "name": "x"}}, False),
    ],
)  # fmt: skip
def test_versions_are_compared_as_pythons_are(
    tmp_path: Path, affected: Object, found: bool
) -> None:
    said = audit.audit(database(tmp_path, affected), [("some-package", "1.10.0"), ("x", "1.10.0")])
    expected = [audit.Finding("some-package", "1.10.0", "PYSEC-1", "why")]
    assert said == (expected if found else [])


def test_what_was_withdrawn_is_of_nobody(tmp_path: Path) -> None:
    path = database(tmp_path, span({"introduced": "0"}), withdrawn="2026-01-01T00:00:00Z")
    assert audit.audit(path, [("some-package", "1.10.0")]) == []


def test_all_locks_are_audited(tmp_path: Path) -> None:
    for name in ("celery", "tensorflow-cpu", "cupy-cuda12x"):
        about = {"package": {"ecosystem": "PyPI", "name": name}, **span({"introduced": "0"})}
        done = CliRunner().invoke(main, ["audit", str(database(tmp_path, about))])
        versions = {version for package, version in sbom.locked() if package == name}
        assert done.exit_code == 1 and len(done.output.splitlines()) == len(versions) > 0
    clean = database(tmp_path, {"versions": ["0"]})
    assert CliRunner().invoke(main, ["audit", str(clean)]).exit_code == 0


def test_a_version_is_one_wheel_in_all_locks() -> None:
    """Two hashes of one version are two files: one of them is not what the other lock took."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted((sbom.ROOT / "images").glob("*/*.txt")):
        for name, version, digest in sbom.LOCKED.findall(path.read_text()):
            found.setdefault((name, version), set()).add(digest)
    assert len(found) > 100
    assert {one: digests for one, digests in found.items() if len(digests) > 1} == {}
