"""A job's request as it lies in a store: the graph, and what the job says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcore.errors import Reason, Refused


@dataclass(frozen=True)
class Request:
    """`graph` is the serialized GraphDef, `meta` the decoded meta.json (docs/contracts.md 4)."""

    digest: str
    graph: bytes
    meta: Mapping[str, Any]

    @property
    def tf(self) -> str:
        """TensorFlow's minor version: "2.21"."""
        return ".".join(str(self.meta["tf"]).split(".")[:2])

    @property
    def tenant(self) -> str:
        """Whose it is, as the gateway wrote; "" where there is one user only."""
        return str(self.meta.get("tenant", ""))


def read_request(folder: Path) -> Request:
    """The request in a folder named by its digest. Raises Refused(STORE_UNREADABLE)."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        return Request(folder.name, (folder / "graph.pb").read_bytes(), meta)
    except (OSError, ValueError) as error:
        raise Refused(str(folder), Reason.STORE_UNREADABLE, str(error)) from error
