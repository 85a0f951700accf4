"""The planners by name. A new one is one line here; nothing else knows them."""

from __future__ import annotations

from collections.abc import Mapping

from stitchcore.fusion import planner_auto, planner_unfused
from stitchcore.fusion.pattern import Planner

STITCHING: Mapping[str, Planner] = {**planner_auto.CHOICES, "auto": planner_auto.plan}
PLANNERS: Mapping[str, Planner] = {**STITCHING, planner_unfused.NAME: planner_unfused.plan}
