"""Small JSON records in the store, by which one start of a job tells the next ones something."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Mapping


def read(path: str) -> Dict[str, Any]:
    """Raises OSError or ValueError when there is no record to read."""
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a record")
    return record


def write(path: str, record: Mapping[str, Any]) -> None:
    """In one piece, with its time and process. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"process": os.getpid(), "time": time.time(), **record}, file)
    os.replace(temporary, path)
