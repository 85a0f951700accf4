"""Savings as a real Prometheus sees them: posted over HTTPS, scraped, asked for by its API."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stitchcore.artifact.store import open_store
from tests.operator.gateway import processes
from tests.operator.gateway.support import KEY, graph, key_of, publish, submission

MEND = "prometheus is missing: apt-get install prometheus"
SECOND = 10**9


def asked(port: int, query: str) -> list[tuple[dict[str, str], float]]:
    """(labels, value) of each series that Prometheus finds."""
    url = f"http://127.0.0.1:{port}/api/v1/query"
    answer = httpx.get(url, params={"query": query}, trust_env=False).json()
    return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


def saved(about: dict[str, Any], seq: int, seconds: float) -> dict[str, Any]:
    figures = {"baseline_ns": SECOND + int(seconds * SECOND), "stitched_ns": SECOND}
    return {**about, **figures, "seq": seq, "steps": 9, "interval": [0, 1], "pairs": 9}


def test_a_real_prometheus_sees_savings_also_after_a_restart(tmp_path: Path) -> None:
    prometheus, promtool = shutil.which("prometheus"), shutil.which("promtool")
    if prometheus is None or promtool is None:
        pytest.skip(MEND)
    digest, request = key_of(graph(), "local")
    about = {"session": "s1", "graph": digest, "key": KEY}
    with processes.redis(processes.free_port(), tmp_path) as broker:
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
                [promtool, "check", "metrics"], input=page, capture_output=True, text=True
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
            with _scraping(prometheus, gateway.metrics, tmp_path) as port:
                name = "stitch_cpu_core_seconds_saved_total"
                processes.wait_for("the scrape", lambda: asked(port, name))
                ((labels, value),) = asked(port, name)
                assert labels["namespace"] == "local"
                assert value == 0.5
                net = f"sum({name}) - sum({name.replace('saved', 'lost')})"
                assert asked(port, net)[0][1] == 0.25
                spent = asked(port, "stitch_cpu_core_seconds_spent_total")
                assert [(one["purpose"], value) for one, value in spent] == [("compile", 2.0)]


@contextlib.contextmanager
def _scraping(prometheus: str, metrics: str, folder: Path) -> Iterator[int]:
    """A Prometheus that scrapes each second; the port of its API."""
    target = metrics.removeprefix("http://").removesuffix("/metrics")
    scrape = {"job_name": "stitch", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = processes.free_port()
    command = [
        *(prometheus, f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'tsdb'}"),
    ]

    def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            url = f"http://127.0.0.1:{port}/-/ready"
            return httpx.get(url, trust_env=False).status_code == 200
        return False

    with processes.started(command, folder / "prometheus.log"):
        processes.wait_for("prometheus", ready)
        yield port
