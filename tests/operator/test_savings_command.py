"""`stitch savings`: the dashboards' figures in a terminal, of a page and of a Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import start_http_server

from stitch_operator.figures import Sample, Sums, bars, figures, plot
from stitch_operator.gateway.metrics import Durable, Metrics
from stitchcore.cli.main import stitch
from tests.operator.gateway.prometheus import asked, scraping
from tests.ports import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
HOUR = 3600
NANO = 10**9
DURABLE = Durable(
    [("vision", "h100", 90 * HOUR * NANO, 4 * HOUR * NANO), ("text", "cpu", 3 * HOUR * NANO, 0),
     ("_other", "other", HOUR * NANO, 2 * HOUR * NANO)],
    [("gpu", "compile", 4.0 * HOUR), ("gpu", "idle", 1.0 * HOUR), ("cpu", "compile", 0.5 * HOUR),
     ("cpu", "measure", 900.0)],
    [("events", "swap-ok", 3), ("events", "rolled-back", 1), ("fallbacks", "slower", 1),
     ("fallbacks", "not_profitable", 4)],
)  # fmt: skip


def said(*arguments: str) -> Result:
    return CliRunner().invoke(stitch, ["savings", *arguments])


@pytest.fixture
def page() -> Any:
    server, thread = start_http_server(0, "127.0.0.1", Metrics(lambda: DURABLE, "1").registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()


def check(found: dict[str, Any]) -> None:
    hours = {name: value / HOUR for name, value in found["gpu"].items()}
    assert hours == {"saved": 91, "lost": 6, "spent": 5, "idle": 1, "net": 80}
    assert found["cores"]["net"] / HOUR == pytest.approx(3 - 0.75)
    assert found["outcomes"] == {"optimized": 3, "rolled_back": 1, "crashed": 0}
    assert found["fallbacks"] == {"slower": 1, "not_profitable": 4}
    rows = {(row["namespace"], row["device"], row["saved"] / HOUR) for row in found["namespaces"]}
    assert rows == {("vision", "h100", 90), ("text", "cpu", 3), ("_other", "other", 1)}


def test_figures_of_a_gateways_page(page: str) -> None:
    done = said("--metrics", page, "--json")
    assert done.exit_code == 0, done.output
    check(json.loads(done.output))


def test_a_reader_sees_net_beside_what_it_is_made_of(page: str) -> None:
    lines = said("--metrics", page).output.splitlines()
    (gpus,) = [line.split() for line in lines if line.startswith("GPU-hours ")]
    assert gpus[1:6] == ["91.000", "6.000", "5.000", "1.000", "80.000"]
    assert any("= net" in line and "█" in line for line in lines)
    assert any(line.split()[:2] == ["vision", "h100"] for line in lines)


@pytest.mark.slow
def test_a_prometheus_says_the_same_also_with_two_pods_of_the_gateway(
    page: str, tmp_path: Path
) -> None:
    """And what the chart's rules record. The pages of two pods are of one ledger."""
    other, _ = start_http_server(0, "127.0.0.1", Metrics(lambda: DURABLE, "1").registry)
    rules = ROOT / "helm" / "stitch" / "files" / "rules.yaml"
    pages = [page, f"http://127.0.0.1:{other.server_port}/metrics"]
    with scraping(tmp_path, pages, rules) as port:
        wait_for(lambda: asked(port, "count(stitch_build_info) > 1"), "both pods")
        wait_for(lambda: asked(port, "stitch:gpu_seconds_net:sum"), "the rules")
        address = f"http://127.0.0.1:{port}"

        def shown() -> Any:
            return json.loads(said("--prometheus", address, "--json", "--days", "0.001").output)

        wait_for(lambda: shown()["history"]["gpu"], "history")
        found = shown()
        check(found)
        ((_, net),) = asked(port, "stitch:gpu_seconds_net:sum")
        assert net == found["gpu"]["net"]
        assert found["history"]["gpu"][-1][1] == 80.0
        text = said("--prometheus", address, "--days", "0.001").output
        assert "GPU-hours net, last 0.001 days" in text and "┤" in text
    other.shutdown()


@pytest.mark.parametrize("option", ["--metrics", "--prometheus"])
def test_who_does_not_answer_is_named_with_what_to_do(option: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = said(option, url)
    assert done.exit_code == 2
    assert url in done.output and "to mend it:" in done.output


def test_nothing_measured_is_said() -> None:
    found = figures([])
    assert found.gpu == Sums() and found.gpu.net == 0
    server, thread = start_http_server(
        0, "127.0.0.1", Metrics(lambda: Durable([], [], []), "1").registry
    )
    text = said("--metrics", f"http://127.0.0.1:{server.server_port}/metrics").output
    assert "Nothing measured yet" in text
    server.shutdown()
    thread.join()


def test_a_loss_looks_like_one() -> None:
    saved, lost, made, idle, net = bars(Sums(3600.0, 7200.0, 0.0), 10)
    assert saved.count("█") == 5 and lost.count("█") == 10 and "█" not in made + idle
    assert net.count("░") == 5 and "-1.000 h" in net


@given(*[st.integers(0, 10**6)] * 4)
def test_bars_add_up_to_the_headline(saved: int, lost: int, made: int, idle: int) -> None:
    one = Sums(float(saved), float(lost), float(made + idle), float(idle))
    shown = [float(line.rpartition(" h")[0].split()[-1]) for line in bars(one)]
    assert shown[0] - sum(shown[1:4]) == pytest.approx(shown[4], abs=0.005)
    assert shown[4] * HOUR == pytest.approx(saved - lost - made - idle, abs=2)


@given(st.lists(st.floats(-1e6, 1e6), max_size=40), st.integers(1, 80), st.integers(1, 12))
def test_a_plot_fits(values: list[float], width: int, height: int) -> None:
    lines = plot([(60.0 * at, value) for at, value in enumerate(values)], width, height)
    assert len(lines) == (height + 1 if values else 0)
    assert all(len(line) <= width + 12 for line in lines)


def test_a_rising_line_rises() -> None:
    lines = plot([(float(at), float(at)) for at in range(8)], 8, 1)
    heights = [" ▁▂▃▄▅▆▇█".index(cell) for cell in lines[0].partition("┤")[2].ljust(8)]
    assert heights == sorted(heights) and heights[-1] == 8


def test_series_of_two_pods_count_once() -> None:
    samples = [
        Sample("stitch_gpu_seconds_saved_total", {"namespace": "a", "gpu": "l4", "pod": pod}, value)
        for pod, value in (("one", 10.0), ("two", 12.0))
    ]
    assert figures(samples).gpu.saved == 12.0
