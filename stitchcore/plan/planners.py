"""The planners by name. A new one is one line here; nothing else knows them."""

from __future__ import annotations

from collections.abc import Mapping

from stitchcore.plan import auto, single
from stitchcore.plan.pattern import Planner

STITCHING: Mapping[str, Planner] = {**auto.CHOICES, "auto": auto.plan}
PLANNERS: Mapping[str, Planner] = {**STITCHING, single.NAME: single.plan}
