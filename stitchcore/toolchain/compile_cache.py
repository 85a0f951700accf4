"""Binaries kept in a folder by key: what a compiler made once is taken from there afterwards.

An entry is two files, KEY.SUFFIX with the bytes and KEY.json with their digest and what the
compiler said. Files appear whole (they are renamed into place), so any number of processes may
share a folder; an entry that is damaged counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(folder: Path, key: str, suffix: str) -> tuple[bytes, dict[str, Any]] | None:
    """The bytes and the record of `key`, or None."""
    try:
        record = json.loads((folder / f"{key}.json").read_text())
        data = (folder / f"{key}.{suffix}").read_bytes()
        whole = hashlib.sha256(data).hexdigest() == record["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (data, record) if whole else None


def write(folder: Path, key: str, suffix: str, data: bytes, record: Mapping[str, Any]) -> None:
    """Keep `data` and `record` (JSON) under `key`. Raises OSError where the folder does not take
    them."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"sha256": hashlib.sha256(data).hexdigest(), **record}
    for name, content in ((f"{key}.{suffix}", data), (f"{key}.json", json.dumps(whole).encode())):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content)
        Path(file.name).replace(folder / name)
