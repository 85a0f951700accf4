"""One request to a gateway that is dead, slow, lying, or not the one that is trusted."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stitchcore.inject import reasons, wire
from tests.inject import https_gateway as gateways
from tests.inject.https_gateway import Asked, Reply, Server


def endpoint(server: Server) -> wire.Endpoint:
    return wire.parse_url(server.url, str(server.ca), str(server.token_file))


def call(to: wire.Endpoint, seconds: float = 5.0, limit: int = 1000) -> wire.Response:
    return wire.request(to, "GET", "/x", None, {}, seconds, limit)


def refused(to: wire.Endpoint, seconds: float = 100.0) -> str:
    with pytest.raises(reasons.Refused) as caught:
        call(to, seconds)
    return caught.value.reason


@pytest.fixture
def other_ca(tmp_path: Path) -> str:
    return str(gateways.certificate(tmp_path / "other")[0])


@pytest.fixture
def some_token(tmp_path: Path) -> str:
    path = tmp_path / "some-token"
    path.write_text("t")
    return str(path)


def test_an_answer(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        return gateways.reply(202, {"got": asked.document}, Retry_After="3")

    with gateways.serve(tmp_path, answer) as server:
        body = b'{"a": 1}'
        found = wire.request(endpoint(server), "POST", "/v1/x", body, {"A": "b"}, 5, 100)
        assert found.status == 202 and found.headers["retry-after"] == "3"
        assert found.body == b'{"got": {"a": 1}}'
        (asked,) = server.asked
        assert asked.headers["authorization"] == "Bearer a-token" and asked.headers["a"] == "b"


@pytest.mark.parametrize(
    "url",
    [
        "http://a:1",
        "https://",
        "https://a/b",
        "https://u:p@a",
        "https://a?x=1",
        "https://a:99999",
        "a:1",
        "https://[::1",
    ],
)
def test_only_https_without_a_path(url: str) -> None:
    with pytest.raises(reasons.Refused, match="STITCH_GATEWAY"):
        wire.parse_url(url, "", "")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(hang=600), "gateway_unreachable"),
        (Reply(body=b"x" * 900, drip=0.1), "gateway_unreachable"),
        (Reply(body=b"x" * 100, cut=50), "gateway_unreachable"),
        (Reply(body=b"x" * 2000), "gateway_error"),
        (Reply(raw=b"SSH-2.0-OpenSSH\r\n"), "gateway_error"),
        (Reply(raw=b""), "gateway_unreachable"),
        (Reply(302, headers={"Location": "https://127.0.0.1:1/"}), "gateway_error"),
        (Reply(307, headers={"Location": "/elsewhere"}), "gateway_error"),
    ],
    ids=["hangs", "drips", "cut", "long", "not-http", "empty", "redirect", "redirect-here"],
)
def test_a_bad_answer_ends_at_the_deadline(reply: Reply, reason: str, tmp_path: Path) -> None:
    """Those that hang and drip would end after a minute and a half, or never."""
    endless = reply.hang or reply.drip
    with gateways.serve(tmp_path, lambda _: reply) as server:
        start = time.monotonic()
        assert refused(endpoint(server), 5.0 if endless else 100.0) == reason
        assert time.monotonic() - start < 50
        assert len(server.asked) == 1  # a redirect is not followed


def test_a_handshake_that_never_ends(other_ca: str, some_token: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = wire.Endpoint("127.0.0.1", silent.getsockname()[1], other_ca, some_token)
        start = time.monotonic()
        assert refused(to, 0.5) == "gateway_unreachable"
        assert time.monotonic() - start < 50


def test_nobody_there(other_ca: str, some_token: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    to = wire.Endpoint("127.0.0.1", port, other_ca, some_token)
    assert refused(to) == "gateway_unreachable"


def test_another_certificate_is_not_trusted(tmp_path: Path, other_ca: str) -> None:
    with gateways.serve(tmp_path, lambda _: Reply()) as server:
        to = replace(endpoint(server), ca=other_ca)
        assert refused(to) == "gateway_untrusted"
        assert refused(replace(to, ca="/nowhere")) == "gateway_untrusted"
        assert server.asked == []  # the token was not shown


def test_a_certificate_for_another_name_is_not_trusted(tmp_path: Path) -> None:
    with gateways.serve(tmp_path, lambda _: Reply()) as server:
        assert refused(replace(endpoint(server), host="localhost")) == "gateway_untrusted"


def test_an_address_is_trusted_by_the_name_that_is_said(tmp_path: Path) -> None:
    with gateways.serve(tmp_path, lambda _: Reply()) as server:
        named = replace(endpoint(server), host="localhost", server_name="127.0.0.1")
        assert wire.request(named, "GET", "/", None, {}, 5, 100).status == 200
        other = replace(endpoint(server), server_name="gateway.example")
        assert refused(other) == "gateway_untrusted"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_old_tls_is_refused(tmp_path: Path) -> None:
    with gateways.serve(tmp_path, lambda _: Reply(), ssl.TLSVersion.TLSv1_1) as server:
        assert refused(endpoint(server)) == "gateway_unreachable"
        assert server.asked == []
    with gateways.serve(tmp_path, lambda _: Reply(), ssl.TLSVersion.TLSv1_2) as server:
        assert call(endpoint(server)).status == 200


def test_proxies_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with gateways.serve(tmp_path, lambda _: Reply()) as server:
        assert call(endpoint(server)).status == 200


def test_the_token_is_read_for_each_request(tmp_path: Path) -> None:
    with gateways.serve(tmp_path, lambda _: Reply()) as server:
        assert call(endpoint(server)).status == 200
        server.token_file.write_text("expired")
        assert call(endpoint(server)).status == 401
        server.token_file.write_text(gateways.TOKEN)
        assert call(endpoint(server)).status == 200
        for text in ("", "two\nlines", "\xe9"):
            server.token_file.write_text(text)
            assert refused(endpoint(server)) == "gateway_denied"
        server.token_file.unlink()
        assert refused(endpoint(server)) == "gateway_denied"
        assert len(server.asked) == 3
