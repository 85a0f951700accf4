"""Savings as a real Prometheus sees them: posted over HTTPS, scraped, asked for by its API; and
those of a real job."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from stitchcore.artifact.store import open_store
from stitchcore.cli.main import stitch
from tests.inject import jobs as injected
from tests.jobs import judge
from tests.operator.gateway import processes
from tests.operator.gateway.prometheus import asked, scraping
from tests.operator.gateway.support import KEY, graph, key_of, publish, submission
from tests.operator.gateway.test_serve import NAMES, serve
from tests.ports import free_port
from tests.waiting import wait_for

SECOND = 10**9


def saved(about: dict[str, Any], seq: int, seconds: float) -> dict[str, Any]:
    figures = {"baseline_ns": SECOND + int(seconds * SECOND), "stitched_ns": SECOND}
    return {**about, **figures, "seq": seq, "steps": 9, "interval": [0, 1], "pairs": 9}


@pytest.mark.slow
def test_a_real_prometheus_sees_what_a_real_job_has_saved(tmp_path: Path) -> None:
    """Under `stitch serve`, with the variables that it prints. The job waits for its artifact
    before step 60, and has steps after it for the pairs that an interval needs."""
    pytest.importorskip("tensorflow", reason="make installs it: pip install tensorflow-cpu")
    cache, ready = tmp_path / "cache", tmp_path / "ready"
    sessions = cache / "sessions"
    with (
        serve(tmp_path / "serve", "--workers", "1") as (_, said),
        scraping(tmp_path, [said["metrics"]]) as port,
    ):
        settings = {name: said[name] for name in NAMES}
        settings |= {"STITCH_STORE": str(cache), "PYTHONPATH": str(injected.BOOTSTRAP)}
        with judge.told(sessions, "ready", ready):
            held = ("--hold", "60", "--until", str(ready))
            judge.untouched(judge.Job("small_step"), tmp_path / "job", 200, held, settings)
        told = [one for one in judge.events_of(sessions) if one["type"] == "savings_total"]
        assert told and told[-1]["interval"] is not None, judge.events_of(sessions)
        last = told[-1]
        net = (last["baseline_ns"] - last["stitched_ns"] - last["lost_ns"]) / SECOND

        def seen() -> bool:
            name = "stitch_cpu_core_seconds_{}_total"
            found = asked(port, f"sum({name.format('saved')}) - sum({name.format('lost')})")
            values = [value for _, value in found]
            return values == [pytest.approx(net * last["devices"], rel=1e-3)]

        wait_for(seen, f"{net} s x {last['devices']}")
        spent = asked(port, 'stitch_cpu_core_seconds_spent_total{purpose="compile"}')
        assert [value > 0 for _, value in spent] == [True]
        command = ["savings", "--prometheus", f"http://127.0.0.1:{port}", "--json"]
        shown = json.loads(CliRunner().invoke(stitch, command).output)["cores"]
        assert shown["saved"] - shown["lost"] == pytest.approx(net * last["devices"], rel=1e-3)
        assert shown["net"] < shown["saved"] - shown["lost"], "what workers used is taken off"


@pytest.mark.slow
def test_a_real_prometheus_sees_savings_also_after_a_restart(
    tmp_path: Path,
) -> None:
    digest, request = key_of(graph(), "local")
    about = {"session": "s1", "graph": digest, "key": KEY}
    with processes.redis(free_port(), tmp_path) as broker:
        with processes.gateway(tmp_path, broker) as gateway:
            gateway.client.post("/v1/graphs", json=submission(graph()))
            publish(open_store(str(tmp_path / "store")), request, spent={"compile": 2.0})
            assert gateway.client.post("/v1/graphs", json=submission(graph())).status_code == 200
            time.sleep(0.6)
            assert gateway.client.post("/v1/savings", json=saved(about, 1, 0.5)).is_success
        with processes.gateway(tmp_path, broker) as gateway:
            assert gateway.client.post("/v1/savings", json=saved(about, 2, 0.25)).is_success
            page = httpx.get(gateway.metrics, trust_env=False).text
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=page, capture_output=True, text=True
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
            with scraping(tmp_path, [gateway.metrics]) as port:
                name = "stitch_cpu_core_seconds_saved_total"
                wait_for(lambda: asked(port, name), "the scrape")
                ((labels, value),) = asked(port, name)
                assert labels["namespace"] == "local"
                assert value == 0.5
                net = f"sum({name}) - sum({name.replace('saved', 'lost')})"
                assert asked(port, net)[0][1] == 0.25
                spent = asked(port, "stitch_cpu_core_seconds_spent_total")
                told = {one["purpose"]: value for one, value in spent}
                assert told == {"compile": 2.0, "measure": 0.0, "idle": 0.0}
