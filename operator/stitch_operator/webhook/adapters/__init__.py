"""Adapters of workloads, one module per kind. A new kind is one module and one line here."""

from __future__ import annotations

from stitch_operator.webhook.adapters.adapter import Adapter
from stitch_operator.webhook.adapters.cronjob import CronJob
from stitch_operator.webhook.adapters.job import Job
from stitch_operator.webhook.adapters.jobset import JobSet
from stitch_operator.webhook.adapters.pod import Pod
from stitch_operator.webhook.adapters.tfjob import TFJob
from stitch_operator.webhook.adapters.trainjob import TrainJob
from stitch_operator.webhook.adapters.volcano import VolcanoJob

_ALL: tuple[Adapter, ...] = (
    *(Job(), CronJob(), JobSet(), TrainJob(), TFJob(), VolcanoJob(), Pod()),
)
ADAPTERS: dict[tuple[str, str], Adapter] = {(one.group, one.kind): one for one in _ALL}
"""By API group and kind."""
