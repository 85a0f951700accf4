"""What `helm test` says of an install, and that it asks until it likes the answer."""

from __future__ import annotations

import copy
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from kubernetes.client.exceptions import ApiException

from stitch_operator import check, names
from stitch_operator.gateway import tls
from stitch_operator.webhook.injection import Situation, decide
from stitch_operator.webhook.policy import Namespace
from stitch_operator.webhook.reasons import Reason
from stitch_operator.webhook.trust import Trust
from tests.operator.webhook import support


def annotated(**words: str) -> dict[str, Any]:
    return {"metadata": {"annotations": words}, "spec": {"containers": []}}


def injected(authority: str = support.CA, **release: Any) -> dict[str, Any]:
    """The pod that is tried, as our own webhook changes it."""
    pod = copy.deepcopy(check.POD)
    situation = Situation(Namespace("team"), Trust(authority, support.TRUST.public_keys))
    decision = decide(pod, situation, support.release(**release))
    made: dict[str, Any] = jsonpatch.apply_patch(pod, decision.operations)
    return made


def test_the_pod_that_is_tried_is_one_that_our_webhook_injects() -> None:
    answer = check.judged(injected())
    assert answer.good and "would be injected" in answer.text
    assert check.gateway_of(injected()) == (support.RELEASE["gatewayUrl"], support.CA)


def test_it_is_injected_in_mode_dry_run_only_in_words() -> None:
    answer = check.judged(annotated(**{names.WOULD_INJECT: "train"}))
    assert answer.good and "dryRun" in answer.text


@pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.name)
def test_a_skip_is_told_with_its_mend(reason: Reason) -> None:
    answer = check.judged(annotated(**{names.SKIPPED: reason.name.lower()}))
    assert not answer.good
    assert reason.value.why in answer.text and reason.value.mend in answer.text


def test_a_reason_of_a_newer_webhook_is_told_as_it_is() -> None:
    answer = check.judged(annotated(**{names.SKIPPED: "of_tomorrow"}))
    assert not answer.good and "of_tomorrow" in answer.text


def test_a_webhook_that_was_not_asked_is_told_from_one_that_skipped() -> None:
    answer = check.judged(copy.deepcopy(check.POD))
    assert not answer.good and "was not asked" in answer.text


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Its URL, and the authority of its certificate."""
    authority, certificate, key = tls.make(tmp_path, ["localhost"])
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://localhost:{server.server_port}", authority.read_text()
    server.shutdown()
    server.server_close()


def test_the_gateway_is_asked_as_a_job_would(gateway: tuple[str, str], tmp_path: Path) -> None:
    url, authority = gateway
    made = check.ask(lambda: injected(authority, gatewayUrl=url))
    assert [answer.good for answer in made] == [True, True]
    (tmp_path / "other").mkdir()
    other = tls.make(tmp_path / "other", ["localhost"])[0].read_text()
    assert not check.reached(url, other).good, "a certificate of somebody else's authority"
    assert not check.reached("https://localhost:1", authority).good


def test_what_cannot_be_created_is_no_crash() -> None:
    def refused() -> dict[str, Any]:
        raise ApiException(status=403, reason="Forbidden")

    def away() -> dict[str, Any]:
        raise ConnectionRefusedError

    assert [(one.good, "403" in one.text) for one in check.ask(refused)] == [(False, True)]
    assert [one.good for one in check.ask(away)] == [False]


def test_outside_of_a_cluster_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 2
    assert "--kubeconfig" in capsys.readouterr().err


def test_it_asks_again_until_the_answer_is_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [[check.Answer(False, "not yet")]] * 2 + [[check.Answer(True, "now")]]
    monkeypatch.setattr(check.config, "load_incluster_config", lambda: None)
    monkeypatch.setattr(check, "ask", lambda _create: answers.pop(0))
    monkeypatch.setattr(check, "EVERY_SECONDS", 0.01)
    assert check.main(["--seconds", "5"]) == 0
    assert "ok   now" in capsys.readouterr().out
    answers += [[check.Answer(False, "never")]] * 1000
    assert check.main(["--seconds", "0.1"]) == 1
    assert "FAIL never" in capsys.readouterr().out
