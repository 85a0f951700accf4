"""`kubectl get secrets -l ... -o json | python -m stitch_operator.keys`: Secrets as a backup keeps
them, for `kubectl create -f`.

Without what belongs to one cluster: a Secret that names an owner which is not there would be
removed as soon as it is restored.
"""

from __future__ import annotations

import json
import sys
from typing import Any

KEPT = ("name", "namespace", "labels", "annotations")


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """A list of Secrets, or one; anything else is a ValueError."""
    items = found.get("items", [found])
    if not items or any(one.get("kind") != "Secret" for one in items):
        raise ValueError("no Secrets: kubectl get secrets -o json")
    made = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {key: one["metadata"][key] for key in KEPT if key in one["metadata"]},
            "type": one.get("type", "Opaque"),
            "data": one.get("data", {}),
        }
        for one in items
    ]
    return {"apiVersion": "v1", "kind": "List", "items": made}


def main() -> int:
    try:
        json.dump(plain(json.load(sys.stdin)), sys.stdout, indent=1)
    except (ValueError, KeyError, AttributeError) as error:
        sys.stderr.write(f"keys: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
