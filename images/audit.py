"""Which packages of the images have known vulnerabilities, by a copy of the OSV database.

`PyPI/all.zip` of https://osv.dev is one file of advisories: it is fetched where there is a way out
and read where there is none, so that nobody is asked what this project is made of.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from images import sbom


@dataclass(frozen=True, order=True)
class Finding:
    """A locked package that an advisory is about."""

    package: str
    version: str
    advisory: str
    summary: str


def audit(database: Path, locked: Iterable[tuple[str, str]]) -> list[Finding]:
    """What the advisories of an OSV export say of locked (package, version)s. Raises
    zipfile.BadZipFile, ValueError."""
    versions: dict[str, list[str]] = {}
    for package, version in locked:
        versions.setdefault(package, []).append(version)
    found = set()
    for advisory in _advisories(database):
        for affected in advisory.get("affected", ()):
            about = affected.get("package", {})
            package = sbom.plain(str(about.get("name", "")))
            if about.get("ecosystem") != "PyPI":
                continue
            for version in versions.get(package, ()):
                if _is_affected(version, affected):
                    said = str(advisory.get("summary") or "")
                    found.add(Finding(package, version, str(advisory["id"]), said))
    return sorted(found)


def _advisories(database: Path) -> Iterator[Mapping[str, Any]]:
    """Those that were not withdrawn."""
    with zipfile.ZipFile(database) as opened:
        for name in opened.namelist():
            advisory = json.loads(opened.read(name))
            if not advisory.get("withdrawn"):
                yield advisory


def _is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """By OSV's rule: named, or from an `introduced` on until a `fixed` or after a last one."""
    if version in affected.get("versions", ()):
        return True
    own = Version(version)
    for span in affected.get("ranges", ()):
        if span.get("type") != "ECOSYSTEM":
            continue
        inside = False
        for kind, text in _events(span):
            if kind == "introduced" and own >= text:
                inside = True
            elif (kind == "fixed" and own >= text) or (kind == "last_affected" and own > text):
                inside = False
        if inside:
            return True
    return False


def _events(span: Mapping[str, Any]) -> list[tuple[str, Version]]:
    """In the order of versions; one that is no version of Python's is nobody's."""
    found = []
    for event in span.get("events", ()):
        for kind, text in event.items():
            try:
                found.append((kind, Version(str(text))))
            except InvalidVersion:
                continue
    return sorted(found, key=lambda one: (one[1], one[0] == "introduced"))
