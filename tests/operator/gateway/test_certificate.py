"""The gateway's certificate changes under its connections: none is dropped, none refused."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import httpx
import pytest

pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_operator.gateway import tls
from tests.operator.gateway import processes
from tests.waiting import wait_for


def shown(answered: httpx.Response) -> bytes:
    stream = answered.extensions["network_stream"]
    return bytes(stream.get_extra_info("ssl_object").getpeercert(True))


@pytest.mark.slow
def test_a_new_certificate_is_served_and_no_connection_is_dropped(tmp_path: Path) -> None:
    with processes.gateway(tmp_path, "redis://127.0.0.1:1/0") as gateway:
        before = shown(gateway.client.get("/healthz"))
        new = tmp_path / "new"
        new.mkdir()
        tls.make(new, ["localhost"])
        both = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        both.load_verify_locations(new / "ca.pem")
        for name in ("gateway.pem", "gateway.key"):
            shutil.copy(new / name, tmp_path / name)

        def another() -> bool:
            with httpx.Client(base_url=gateway.url, verify=both) as fresh:
                seen = shown(fresh.get("/healthz"))
            assert shown(gateway.client.get("/healthz")) == before  # kept open all the while
            return seen != before

        wait_for(another, "the new one is shown")
        text = httpx.get(gateway.metrics).text
        assert "stitch_gateway_certificate_expiry_seconds" in text
