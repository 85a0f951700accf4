"""A real Prometheus for the tests: Debian's, which tools/system.sh installs, promtool beside it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from stitch_operator.dashboards.panels import VARIABLES
from tests.operator.gateway import processes
from tests.ports import free_port
from tests.waiting import wait_for

Found = list[tuple[dict[str, str], float]]


@contextlib.contextmanager
def scraping(folder: Path, metrics: Sequence[str], rules: Path | None = None) -> Iterator[int]:
    """A Prometheus that scrapes these pages, and evaluates rules, each second; the port of its
    API. Skips, loudly, where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    targets = [one.removeprefix("http://").removesuffix("/metrics") for one in metrics]
    scrape = {
        "job_name": "stitch",
        "honor_labels": True,
        "static_configs": [{"targets": targets}],
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [scrape],
        "rule_files": [str(rules)] if rules else [],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    command = [
        *(program, f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'tsdb'}"),
    ]

    def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            url = f"http://127.0.0.1:{port}/-/ready"
            return httpx.get(url, trust_env=False).status_code == 200
        return False

    with processes.started(command, folder / "prometheus.log"):
        wait_for(ready, "prometheus")
        yield port


def asked(port: int, query: str) -> Found:
    """(labels, value) of each series that Prometheus finds. Raises ValueError with what it says of
    a query that it does not take."""
    url = f"http://127.0.0.1:{port}/api/v1/query"
    answer = httpx.get(url, params={"query": query}, trust_env=False).json()
    if answer["status"] != "success":
        raise ValueError(f"{query}: {answer['error']}")
    return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


def runnable(expr: str, window: str = "10m", rate: str = "30s") -> str:
    """The expression with what Grafana would put in: a window for the chosen time, another for
    rates, and all that can be chosen."""
    made = expr.replace("$__range", window).replace("$__rate_interval", rate)
    for name in VARIABLES:
        made = made.replace(f"${name}", ".*")
    if "$" in made:
        raise ValueError(f"unknown variable in {expr!r}")
    return made
