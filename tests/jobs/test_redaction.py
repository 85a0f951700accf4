"""A store after a stitched run holds nothing of the user's but the names of nodes.

The names stay because the store is a folder of the user's own (docs/contracts.md section 4); a
gateway gets none of them either. The rules are tested in tests/inject/test_redact.py.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.inject import https_gateway as gateways
from tests.inject import jobs as injected
from tests.jobs import judge as judges

WEIGHTS, TEXT = b"CanaryWeightsOfTheUser__", b"CanaryTextOfTheUser"  # scripts/canaries.py
NAME = b"CanaryName"


def forms(secret: bytes) -> list[re.Pattern[bytes]]:
    """How a secret may stand in a file: as it is, in base64 wherever it begins in what was
    encoded (characters that its neighbours share are left out), in hexadecimal, spaced out."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    found.append(secret.decode().encode("utf-16-le"))
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + secret + b"\0\0")
        found.append(text[-(-8 * offset // 6) : (offset + len(secret)) * 8 // 6])
    return [re.compile(re.escape(one)) for one in found]


def numbers(values: np.ndarray) -> list[re.Pattern[bytes]]:
    """How floats stand in text: their first six digits and their exponent."""
    found = []
    for value in values:
        digits, _, exponent = f"{value:.8e}".partition("e+")
        found.append(re.compile(rf"{re.escape(digits[:7])}\d*[eE]\+?{exponent}".encode()))
    return found


SECRETS = [*forms(WEIGHTS), *forms(TEXT), *numbers(np.frombuffer(WEIGHTS, np.float32))]


def is_told(data: bytes) -> bool:
    return any(one.search(data) for one in SECRETS)


@pytest.mark.parametrize("secret", [WEIGHTS, TEXT])
def test_the_scan_finds_every_form(secret: bytes) -> None:
    assert not is_told(b"Canary, WeightsOfTheUser, 2.7e+20 and the Text")
    assert is_told(b"some " + secret + b" more") and is_told(secret.hex().encode())
    for before in (b"", b"a", b"ab", b"abc"):
        assert is_told(base64.b64encode(before + secret)), before
        assert is_told(base64.b64encode(before + secret + b"and more")), before
    values = np.frombuffer(WEIGHTS, np.float32)
    assert is_told(f"constant({{{values[2]!r}}})".encode())
    assert is_told(f"f32[6] constant({{1, {float(values[0]):.9g}, 2}})".encode())


@pytest.mark.slow
def test_weights_and_text_are_nowhere(tmp_path: Path) -> None:
    dump = tmp_path / "store" / "dump"
    job = judges.Job("canaries")
    record = judges.stitched(
        job, tmp_path / "out", 8, tmp_path / "store", environ={"STITCH_DUMP": str(dump)}
    )
    assert judges.stitched_steps(record), record.lines
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert {"requests", "artifacts", "answers", "sessions", "dump"} <= {
        part for path in files for part in path.parts
    }
    held = {path: path.read_bytes() for path in files}
    held[record.out / "stderr.txt"] = record.out.joinpath("stderr.txt").read_bytes()
    assert not [str(path) for path, data in held.items() if is_told(data)]
    assert any(NAME in data for data in held.values()), "the scan finds what is there"


@pytest.mark.slow
def test_a_gateway_is_told_nothing_of_the_users(tmp_path: Path) -> None:
    """All that a job sends, as it was sent: what is not in it is nowhere outside the job."""
    arrived = tmp_path / "arrived"

    def answer(asked: gateways.Asked) -> gateways.Reply:
        if asked.path == "/v1/graphs":
            arrived.touch()
        return gateways.reply(409, {"status": "refused", "reason": "slower", "detail": "x"})

    with gateways.serve(tmp_path / "gateway", answer) as server:
        settings = server.settings(
            STITCH_PUBLIC_KEYS="ab" * 32,
            STITCH_STORE=str(tmp_path / "cache"),
            STITCH_SESSION="s",
            PYTHONPATH=str(injected.BOOTSTRAP),
        )
        held = ("--hold", "4", "--until", str(arrived))
        judges.untouched(judges.Job("canaries"), tmp_path / "out", 8, held, settings)
    submitted = [one.document for one in server.asked if one.path == "/v1/graphs"]
    assert submitted
    sent = [json.dumps([one.path, dict(one.headers), one.document]) for one in server.asked]
    held_in = [base64.b64decode(one["graph"]) for one in submitted]
    assert all(b"MatMul" in data for data in held_in), "it is the user's graph"
    for data in (*(text.encode() for text in sent), *held_in):
        assert not is_told(data) and NAME not in data
