"""Decides about a workload that is being created: its word is stamped into its pod templates.

So an annotation on a Job, where users put it, reaches the pods, where injection happens. Nothing
but annotations is written, and only at CREATE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stitch_operator import names
from stitch_operator.webhook.adapters import ADAPTERS
from stitch_operator.webhook.patch import Operation
from stitch_operator.webhook.policy import texts

Workload = Mapping[str, Any]


def stamp(
    group: str, kind: str, workload: Workload, inherited: Mapping[str, str]
) -> list[Operation]:
    """`inherited` are annotations of the owner, as a cache knows them (a CronJob that was annotated
    after it was made). A workload that says nothing, or of a kind without adapter, stays."""
    adapter = ADAPTERS.get((group, kind))
    said = word(workload, inherited)
    if adapter is None or not said:
        return []
    return adapter.stamp(workload, {**said, names.WORKLOAD: workload_name(workload)})


def word(workload: Workload, inherited: Mapping[str, str]) -> dict[str, str]:
    """What the workload asks of its pods; its own word wins over what it inherits, a label's
    "false" over an annotation. Empty where nobody says anything about optimizing."""
    own = texts(workload, "annotations")
    said = {name: inherited[name] for name in names.ASKED if name in inherited}
    said |= {name: own[name] for name in names.ASKED if name in own}
    label = texts(workload, "labels").get(names.OPTIMIZE)
    if label is not None and (names.OPTIMIZE not in own or label == "false"):
        said[names.OPTIMIZE] = label
    return said if names.OPTIMIZE in said else {}


def workload_name(workload: Workload) -> str:
    """The topmost owner's name without its run's suffix, or the workload's own."""
    metadata = workload.get("metadata") or {}
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    own = metadata.get("name") or metadata.get("generateName") or ""
    return names.without_run(str(owners[0]["name"] if owners else own))
