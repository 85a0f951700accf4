"""Which queue a worker serves: its own processor's, or a GPU's that it compiles for."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_worker.machine import served
from stitchcore.errors import Reason, Refused
from stitchcore.service.queues import queue_name

OWN = "cpu-x86-64-v3"


@pytest.mark.parametrize("asked", ["", OWN])
def test_a_worker_serves_its_own_processor(asked: str) -> None:
    assert served(asked, OWN) == OWN


def test_a_worker_serves_a_gpu_and_says_what_it_takes_to_measure(
    caplog: pytest.LogCaptureFixture, needs_nvrtc: None
) -> None:
    with caplog.at_level(logging.INFO):
        target = served("sm_90", OWN)
    assert queue_name(target, "2.21") == "stitch.sm_90.tf2.21"
    assert "compiling for sm_90: verified and timed where" in caplog.text
    assert "else unmeasured (the artifact says why)" in caplog.text


@pytest.mark.parametrize("asked", ["cpu-x86-64-v4", "sm_12"])
def test_what_it_cannot_prove_or_compile_it_refuses(asked: str) -> None:
    with pytest.raises(Refused) as refused:
        served(asked, OWN)
    assert refused.value.refusal.reason is Reason.WRONG_TARGET
