"""The certificate: waited for, replaced without a restart or a refused request, never half."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import ssl
import threading
import time
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from stitch_operator import certificates
from stitch_operator.gateway import tls
from tests.operator.webhook import serving, support
from tests.operator.webhook.serving import NAMES, Served, review
from tests.waiting import wait_for

POD = review(support.case("one_container").given)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.05)


def ready(served: Served) -> tuple[int, str]:
    answered = httpx.get(f"{served.url}/readyz", verify=False)
    return answered.status_code, answered.text


def until(served: Served, text: str) -> None:
    wait_for(lambda: text in ready(served)[1], lambda: ready(served)[1])


def test_a_replica_that_starts_before_its_secret_waits_for_it(tmp_path: Path) -> None:
    with serving.serve(tmp_path, certified=False) as served:
        assert ready(served) == (503, f"{certificates.NOTHING}\n")
        tls.make(tmp_path, NAMES)
        until(served, "ready")
        with served.client() as client:
            assert client.post("/mutate/pods", json=POD).json()["response"]["allowed"]
        end = served.count("stitch_webhook_certificate_expiry_seconds")
        assert end == pytest.approx(time.time() + tls.DAYS * 86400, abs=3600)


def test_rotation_refuses_no_request(tmp_path: Path) -> None:
    """Requests on new connections all the time, trusting the old and then the new authority."""
    with serving.serve(tmp_path / "now") as served:
        both = tmp_path / "both.pem"
        old = (tmp_path / "now" / "ca.pem").read_bytes()
        shutil.copytree(tmp_path / "now", tmp_path / "now.old")
        (tmp_path / "next").mkdir()
        made = tls.make(tmp_path / "next", NAMES)
        both.write_bytes(old + made[0].read_bytes())
        trust = _trust(both)
        failures: list[str] = []
        seen: set[bytes] = set()
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                try:
                    with httpx.Client(verify=trust) as client:
                        answered = client.post(f"{served.url}/mutate/pods", json=POD)
                        stream = answered.extensions["network_stream"]
                        seen.add(stream.get_extra_info("ssl_object").getpeercert(True))
                except httpx.TransportError as error:
                    failures.append(str(error))
                    continue
                if answered.status_code != 200:
                    failures.append(answered.text)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: seen, "the old one is shown")
        shutil.copy(tmp_path / "next" / "gateway.pem", tmp_path / "now" / "gateway.pem")
        failed = "stitch_webhook_certificate_failures_total"  # one after the other, as `cp` would
        wait_for(lambda: served.count(failed), "a certificate without its key is seen")
        shutil.copy(tmp_path / "next" / "gateway.key", tmp_path / "now" / "gateway.key")
        wait_for(lambda: len(seen) == 2, "the new one is shown")
        for number in range(100):  # handshakes meet every moment of a change
            name = "now.old" if number % 2 else "next"
            for file in ("gateway.pem", "gateway.key"):
                shutil.copy(tmp_path / name / file, tmp_path / "now" / file)
            served.certificates.look()
        stop.set()
        for thread in threads:
            thread.join(120)
        assert failures == [] and len(seen) == 2
        assert ready(served)[0] == 200


def _trust(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


@pytest.mark.parametrize("wrong", ["", "not PEM", "other key"])
def test_what_cannot_be_used_leaves_the_present_one(tmp_path: Path, wrong: str) -> None:
    with serving.serve(tmp_path) as served:
        if wrong == "other key":
            (tmp_path / "other").mkdir()
            shutil.copy(tls.make(tmp_path / "other", NAMES)[2], tmp_path / "gateway.key")
        else:
            (tmp_path / "gateway.pem").write_text(wrong)
        assert served.certificates.look() is False
        assert served.client().get("/healthz").status_code == 200
        assert served.count("stitch_webhook_certificate_failures_total") >= 1
        (tmp_path / "gateway.pem").unlink()
        assert served.certificates.look() is False


def test_an_ended_certificate_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "DAYS", -1)
    monkeypatch.setattr(tls, "MARGIN", datetime.timedelta(days=3))
    with serving.serve(tmp_path) as served:
        status, text = ready(served)
        assert status == 503 and "ended" in text
        found = httpx.post(f"{served.url}/mutate/pods", json=POD, verify=False)
        assert found.status_code == 200


def test_another_certificate_than_the_files_is_not_ready(tmp_path: Path) -> None:
    """As when reloading silently failed: what clients see is what counts."""
    with serving.serve(tmp_path) as served:
        (tmp_path / "other").mkdir()
        _, certificate, key = tls.make(tmp_path / "other", NAMES)
        served.certificates._live = tls.context(certificate, key)
        status, text = ready(served)
        assert status == 503 and "another certificate" in text


@pytest.mark.slow
def test_nobody_listening_is_not_ready(tmp_path: Path) -> None:
    with serving.serve(tmp_path) as served:
        port, found = served.port, served.certificates
    assert "no handshake" in asyncio.run(found.check("127.0.0.1", port))


def test_the_throwaway_certificate_is_nobodys(tmp_path: Path) -> None:
    with serving.serve(tmp_path, certified=False) as served:
        answered = httpx.Client(verify=False).get(f"{served.url}/healthz")
        stream = answered.extensions["network_stream"]
        shown = stream.get_extra_info("ssl_object").getpeercert(True)
        names = x509.load_der_x509_certificate(shown).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert names.value.get_values_for_type(x509.DNSName) == ["throwaway"]
