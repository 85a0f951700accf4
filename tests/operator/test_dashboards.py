"""Dashboards: what the chart ships is what the code says, and a real Prometheus answers every
panel with figures of a real gateway."""

from __future__ import annotations

import contextlib
import html
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import start_http_server

from bench import pictures
from stitch_operator.dashboards.panels import VARIABLES, Panel
from stitch_operator.dashboards.savings import JOBS, MAKING, SAVINGS, WAITING
from stitch_operator.dashboards.service import HEALTH, WORKERS
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import Known, Ledger
from stitch_operator.gateway.savings import Report
from stitch_operator.metrics import METRICS, PURPOSE, Kind
from stitch_operator.reconciler.metrics import Metrics as OfReconciler
from stitch_operator.reconciler.metrics import Told
from stitch_operator.reconciler.records import Speedup, Status
from stitch_operator.store.app import Metrics as OfStore
from stitch_operator.webhook.metrics import Metrics as OfWebhook
from stitchcore.artifact.store import open_store
from tests import lean
from tests.operator.gateway import processes
from tests.operator.gateway.prometheus import asked, runnable, scraping
from tests.operator.gateway.support import QUEUE, graph, key_of, publish, submission
from tests.ports import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "helm" / "stitch" / "files" / "rules.yaml"
ALL = (SAVINGS, JOBS, WORKERS, HEALTH)
PANELS = [(one.name, panel) for one in ALL for panel in one.panels]
SECOND, HOUR = 10**9, 3600.0
TOLD = Told("vision", "research", "train", Status(
    phase="Optimized", gpu_hours_saved=0.5, gpu_seconds_saved=1800.0, gpu_seconds_lost=36.0,
    speedup=Speedup(ratio=1.71, low=1.66, high=1.76),
))  # fmt: skip


def metrics_of(expr: str) -> frozenset[str]:
    """Names of series that an expression asks for."""
    return frozenset(re.findall(r"\bstitch[_:][a-z_:]+", expr))


each_panel = pytest.mark.parametrize(
    ("name", "panel"), PANELS, ids=[f"{name}: {panel.title}" for name, panel in PANELS]
)


def test_the_charts_files_are_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "tools" / "dashboards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": _path()})
    assert done.returncode == 0, done.stdout + done.stderr


def _path() -> str:
    return ":".join(lean.SOURCES)


@pytest.mark.parametrize("dashboard", ALL, ids=lambda one: str(one.name))
def test_panels_have_places_of_their_own(dashboard: Any) -> None:
    document = dashboard.document()
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(numbers) == len(set(numbers))
    assert json.loads(json.dumps(document)) == document


def test_a_panel_says_what_it_shows_and_what_it_means_when_empty() -> None:
    for name, panel in PANELS:
        assert panel.text.endswith(".") and panel.empty and panel.queries, (name, panel.title)
        if len(panel.queries) > 1:
            assert all(query.legend for query in panel.queries), (name, panel.title)


def test_a_panel_asks_for_what_there_is() -> None:
    suffixes = {"_bucket", "_count", "_sum"}
    series = set(METRICS) | {
        one.name + suffix
        for one in METRICS.values()
        if one.kind is Kind.HISTOGRAM
        for suffix in suffixes
    }
    recorded = RULES.read_text() + "record: stitch:price_per_hour\n"
    for _, panel in PANELS:
        for query in panel.queries:
            for metric in metrics_of(query.expr):
                assert metric in series or f"record: {metric}\n" in recorded, metric


def test_the_headline_is_net() -> None:
    """A dashboard that shows only gross is a defect: the first numbers are net, and wherever what
    was saved stands, what was lost and spent stands beside it."""
    first = SAVINGS.rows[0].panels
    assert all("_net:sum" in query.expr for panel in first for query in panel.queries)
    for _, panel in PANELS:
        asks = " ".join(query.expr for query in panel.queries)
        if "_seconds_saved" in asks:
            assert "_seconds_lost" in asks and "_net:" in asks
            assert "_seconds_spent" in asks and MAKING in asks and WAITING in asks
        assert not re.search(r"stitch_(gpu|cpu_core)_seconds_(saved|net)", asks), "not of the rules"
    for purpose in PURPOSE.values:
        assert (purpose == "idle") == (f'"{purpose}"' in WAITING)


def test_a_reader_chooses_by_namespace_team_and_job() -> None:
    """And what can be chosen is asked for: each variable is in a query of its dashboard."""
    for one in ALL:
        listed = one.document()["templating"]["list"]
        assert [entry["name"] for entry in listed] == ["datasource", *one.choices]
        asks = " ".join(query.expr for panel in one.panels for query in panel.queries)
        for name in VARIABLES:
            assert (f"${name}" in asks) == (name in one.choices), (one.name, name)
    assert {name for one in ALL for name in one.choices} == set(VARIABLES)


def test_what_it_cost_has_a_row() -> None:
    [row] = [row for row in SAVINGS.rows if row.title == "What it cost"]
    asks = " ".join(query.expr for panel in row.panels for query in panel.queries)
    for series in ("stitch:money_spent:sum", "stitch:gpu_seconds_lost:total",
                   "stitch:cpu_core_seconds_spent:total"):  # fmt: skip
        assert series in asks


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a Prometheus that has scraped a gateway's process with a worker, Redis and reports
    over HTTPS, and pages of the other parts' own metrics; it evaluates the chart's rules."""
    folder = tmp_path_factory.mktemp("dashboards")
    _gpus(folder / "ledger.sqlite")
    _waiting(folder)
    rules = folder / "rules.yaml"
    prices = "  - name: prices\n    rules:\n" + "".join(
        f"      - record: stitch:price_per_hour\n        expr: vector({price})\n"
        f"        labels: {{gpu: {gpu}}}\n"
        for gpu, price in (("h100", 2.5), ("cpu", 0.05))
    )
    rules.write_text(RULES.read_text() + prices)
    with (
        processes.redis(free_port(), folder) as broker,
        processes.started(_worker(broker), folder / "worker.log"),
        processes.gateway(folder, broker) as gateway,
        _others() as others,
        scraping(folder, [gateway.metrics, *others], rules) as port,
    ):
        wait_for(lambda: asked(port, "sum(stitch_workers) > 0"), "a worker")
        for salt in (1, 2, 3):
            _job(gateway, folder, salt)
        gateway.client.get("/v1/graphs/none", headers={"Authorization": "Bearer no"})
        wait_for(
            lambda: asked(port, "stitch:cpu_core_seconds_net:sum < 3600 > 0"), "the last report"
        )
        time.sleep(3)
        yield port


def _worker(broker: str) -> list[str]:
    return [sys.executable, str(ROOT / "tests/operator/worker_of_tests.py"), broker, QUEUE, "1"]


def _gpus(path: Path) -> None:
    """Jobs on GPUs, in the ledger: identities with GPUs take a cluster's TokenReview."""
    ledger = Ledger(path)
    for gpu, saved in (("h100", 300), ("other", 60)):
        who = Identity("vision", "train", f"pod-{gpu}", 2.0, gpu, 0.0)
        said = Report(1, 9, (900 + saved) * SECOND, 900 * SECOND, SECOND, 2.0, True, (1, 2))
        ledger.save(who, "s", "cd" * 32, said, ratio=2.0, now=HOUR)
    ledger.submitted(who, "s", Known("r", "d", "sm_90", "2.21", None, 0, None, None), HOUR)
    ledger.finished("r", None, None, {"compile": 20.0, "measure": 4.0}, "gpu", 1)
    ledger.close()


def _waiting(folder: Path) -> None:
    """What a worker has written that held a GPU and two cores while it had no task."""
    record = {"time": time.time(), "target": "sm_90", "idle": {"cpu": 0.5, "gpu": 0.25}}
    store = open_store(str(folder / "store"))
    store.write(json.dumps(record).encode(), "workers", f"{'ab' * 16}.json")


def _job(gateway: processes.Gateway, folder: Path, salt: int) -> None:
    """A job's calls: its graph, then a swap and savings; the answer in two steps, as a worker's."""
    data, store = graph(salt=salt), open_store(str(folder / "store"))
    digest, request = key_of(data, "local")
    key = f"{salt:02x}" * 32
    body = submission(data, session=f"s{salt}")
    assert gateway.client.post("/v1/graphs", json=body).status_code == 202
    store.answer(request, {"status": "pending", "stage": "start", "time": time.time()})
    time.sleep(2.5)  # it has time to save anything
    wait_for(
        lambda: _counted(gateway, "stitch_queue_wait_seconds_count") >= salt, "a worker's start"
    )
    publish(store, request, key, spent={"compile": 0.02, "measure": 0.01}, units={"miss": 2},
            open=["network"], account=salt)  # fmt: skip
    time.sleep(2.5)
    wait_for(lambda: _counted(gateway, "stitch_compile_duration_seconds_count") >= salt, "its end")
    about = {"session": f"s{salt}", "graph": digest, "key": key}
    outcome = "rolled-back" if salt == 2 else "swap-ok"
    for seq, kind in enumerate(("swap-begin", outcome)):
        event = {**about, "seq": seq, "type": kind, "reason": "slower" if salt == 2 else ""}
        assert gateway.client.post("/v1/jobs/events", json=event).status_code == 200
    figures = {"baseline_ns": 4 * SECOND, "stitched_ns": 3 * SECOND, "lost_ns": SECOND // 10}
    said = {**about, **figures, "seq": 9, "steps": 9, "interval": [1, 2], "pairs": 9}
    assert gateway.client.post("/v1/savings", json=said).status_code == 200
    assert gateway.client.post("/v1/savings", json={**said, "seq": 10, "baseline_ns": 9 * SECOND,
                               "session": "x"}).status_code == 422  # fmt: skip


def _counted(gateway: processes.Gateway, name: str) -> float:
    lines = httpx.get(gateway.metrics, trust_env=False).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextlib.contextmanager
def _others() -> Iterator[list[str]]:
    """Pages of webhook, reconciler and store: their own metrics, counted as their code does."""
    webhook = OfWebhook("1")
    reconciler = OfReconciler(lambda: {"Optimized": 2}, "1", lambda: [TOLD])
    store = OfStore(lambda: 50 * 2**30)
    for one in (webhook, store):
        one.certificate.end.set(time.time() + 40 * 86400)
    reconciler.gateway_read.set(time.time())
    served = [start_http_server(0, "127.0.0.1", one.registry)[0]
              for one in (webhook, reconciler, store)]  # fmt: skip
    end = contextlib.ExitStack()

    def count() -> None:
        webhook.injection("injected")
        webhook.duration.labels("pods").observe(0.002)
        store.requests.labels("worker", "GET", "200").inc()
        reconciler.writes.labels("status", "failed").inc()
        webhook.watch_failures.labels("namespaces").inc()
        reconciler.watch_failures.labels("pods").inc()

    with end, _repeated(count):
        for one in served:
            end.callback(one.shutdown)
        yield [f"http://127.0.0.1:{one.server_port}/metrics" for one in served]


@contextlib.contextmanager
def _repeated(call: Any) -> Iterator[None]:
    """Twice a second in a thread of its own."""
    done = threading.Event()

    def follow() -> None:
        while not done.wait(0.5):
            call()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
@each_panel
def test_a_real_prometheus_answers_every_query(running: int, name: str, panel: Panel) -> None:
    for query in panel.queries:
        expr = runnable(query.expr)

        def answered(expr: str = expr) -> bool:
            return any(not math.isnan(value) for _, value in asked(running, expr))

        wait_for(answered, f"data: {query.expr}")


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", ALL, ids=lambda one: str(one.name))
def test_a_browser_draws_it_from_the_charts_json(running: int, dashboard: Any) -> None:
    """Every panel with its series, or with what an empty one means; nothing it does not know."""
    file = ROOT / "helm" / "stitch" / "files" / "dashboards" / f"{dashboard.name}.json"
    document, end = json.loads(file.read_text()), time.time()
    series = pictures.answers(running, document, end - 60, end)
    [*panels] = [one for one in document["panels"] if one["type"] != "row"]
    empty = panels[0]
    del series[str(empty["id"])]
    said = pictures.chromium(pictures.page(document, series, end - 60, end), "--dump-dom")
    found = re.findall(r'class="panel"[^>]*data-series="(\d+)"', said)
    counts = [len([one for one in series.get(str(p["id"]), ()) if one["values"]]) for p in panels]
    assert [int(one) for one in found] == counts
    for panel in panels:
        assert f'<div class="title">{html.escape(panel["title"], quote=False)}</div>' in said
    told = html.escape(empty["fieldConfig"]["defaults"]["noValue"], quote=False)
    assert f'<div class="empty">{told}</div>' in said
    assert said.count('class="stat"') > 0 or said.count('class="bar"') > 0


@pytest.mark.slow
def test_figures_agree_with_what_was_reported(running: int) -> None:
    """3 jobs x (1 - 0.1) s, less 3 x 0.03 s spent and 0.5 s waited; on GPUs 2 x 299 + 2 x 59, less
    24 s and 0.25 s."""
    money = (2 * 299 * 2.5 + 2.7 * 0.05 - 24.25 * 2.5 - 0.59 * 0.05) / 3600
    for name, right in (
        ("stitch:cpu_core_seconds_net:sum", 3 * 0.9 - 3 * 0.03 - 0.5),
        ("stitch:gpu_seconds_net:sum", 2 * 299 + 2 * 59 - 24.25),
        ("stitch:money_net:sum", money),
    ):

        def agrees(name: str = name, right: float = right) -> bool:
            return [value for _, value in asked(running, name)] == [pytest.approx(right)]

        wait_for(agrees, lambda name=name: (name, asked(running, name)))
