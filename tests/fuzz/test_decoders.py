"""Every decoder of strangers' bytes refuses or reads, whatever comes, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import lean
from tests.fuzz import decoders
from tests.fuzz.decoders import DECODERS, Decoder


def fuzzed(name: str, seconds: float) -> str:
    command = [sys.executable, "-m", "tests.fuzz.decoders", name, "--seconds", str(seconds)]
    environment = lean.environment(PYTHONPATH=":".join(lean.SOURCES))
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_refuses_or_reads(name: str) -> None:
    assert "inputs: nothing" in fuzzed(name, 3.0)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_refuses_or_reads_for_ten_minutes(name: str) -> None:
    assert "inputs: nothing" in fuzzed(name, 600.0)


def test_a_planted_fault_is_found_and_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes) -> object:
        return {"a": 1}[next(iter(json.loads(data)))]

    monkeypatch.setitem(DECODERS, "planted", Decoder(read, (ValueError,), (b'{"a": 1}',)))
    number, found = decoders.fuzz("planted", 60.0, 7)
    assert f"number {number}" in found
    again = decoders.mutated((b'{"a": 1}',), 7, number)
    assert decoders.finding(DECODERS["planted"], again)
