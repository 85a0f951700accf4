"""What the reconciler asks of API server and gateway: no more than it needs, and all of it."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
from kubernetes import client
from prometheus_client import CollectorRegistry

from stitch_operator import watch
from stitch_operator.gateway import tls
from stitch_operator.reconciler import health
from stitch_operator.reconciler.cluster import Watches
from stitch_operator.reconciler.gateway import Access, Poll
from stitch_operator.reports import Workload, Workloads
from tests.operator.reconciler.strategies import row
from tests.operator.webhook import handmade_api, support
from tests.waiting import wait_for

JOBS, JOB_SETS = "/apis/batch/v1/jobs", "/apis/jobset.x-k8s.io/v1alpha2/jobsets"


def test_metadata_alone_is_asked_for_of_workloads_and_a_kind_may_not_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "FIRST_PAUSE", 0.02)
    with handmade_api.serve() as api:
        api.at(JOB_SETS).status = 404
        configuration = client.Configuration()
        configuration.host = api.url
        failures: list[str] = []
        watches = Watches(
            client.ApiClient(configuration), support.release(), lambda *_: None, failures.append
        )
        watches.start()
        wait_for(watches.ready)
        wait_for(lambda: len(api.accepted[JOBS]) == 2)  # listed, and watched from there
        watches.stop()
        assert all("as=PartialObjectMetadata" in one for one in api.accepted[JOBS])
        assert watches.knows("batch", "Job") and not watches.knows("jobset.x-k8s.io", "JobSet")
        assert not watches.knows("apps", "ReplicaSet") and failures == []
        assert not any("secrets" in path for path, _ in api.asked)


@contextmanager
def told(folder: Path, pages: list[Workloads]) -> Iterator[tuple[Access, list[tuple[str, str]]]]:
    """A gateway that answers with these pages, and what it was asked: `since`, authorization."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            since = parse_qs(urlsplit(self.path).query).get("since", [""])[0]
            asked.append((since, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(pages[len(asked) - 1]))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    authority, certificate, key = tls.make(folder, ["localhost"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = tls.context(certificate, key).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    (folder / "token").write_text("first\n")
    url = f"https://localhost:{server.server_address[1]}"
    try:
        yield Access(url, authority, folder / "token"), asked
    finally:
        server.shutdown()
        server.server_close()


def test_the_gateway_is_asked_for_all_pages_and_then_for_what_has_changed(tmp_path: Path) -> None:
    pages = [
        Workloads(workloads=[row(0)], next="a.1", more=True, time=10.0),
        Workloads(workloads=[row(1)], next="a.2", more=False, time=11.0),
        Workloads(workloads=[], next="a.2", more=False, time=16.0),
    ]
    heard: list[tuple[list[str], float | None]] = []

    def rows(some: list[Workload], read: float | None) -> None:
        heard.append(([one.pod for one in some], read))

    with told(tmp_path, pages) as (access, asked):
        poll = Poll(access, rows, lambda: None)
        poll.round()
        access.token_file.write_text("second\n")  # it is rotated
        poll.round()
    assert asked == [("", "Bearer first"), ("a.1", "Bearer first"), ("a.2", "Bearer second")]
    assert heard == [(["pod-0"], None), (["pod-1"], 11.0), ([], 16.0)]


def test_a_gateway_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with told(tmp_path, []) as (access, asked):
        other, _, _ = tls.make(tmp_path / "other", ["localhost"])
        poll = Poll(replace(access, authority=other), lambda *_: None, lambda: None)
        with pytest.raises(httpx.ConnectError):
            poll.round()
    assert asked == []


def test_health_is_that_the_loop_goes_round() -> None:
    alive = [True]
    port = health.serve("127.0.0.1", 0, CollectorRegistry(), lambda: alive[0])
    url = f"http://127.0.0.1:{port}"
    assert urllib.request.urlopen(f"{url}/healthz").status == 200
    alive[0] = False
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(f"{url}/healthz")
    assert failed.value.code == 503
    assert urllib.request.urlopen(f"{url}/metrics").status == 200
