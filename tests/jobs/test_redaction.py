"""A store after a stitched run holds nothing of the user's but the names of nodes.

The names stay because the store is a folder of the user's own (docs/contracts.md section 4); what
a gateway gets is in tests/inject/test_redact.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import judge as judges

SECRETS = {"weights": b"CanaryWeightsOfTheUser__", "text": b"CanaryTextOfTheUser"}
NAME = b"CanaryName"


@pytest.mark.slow
def test_weights_and_text_are_nowhere(tmp_path: Path) -> None:
    dump = tmp_path / "store" / "dump"
    job = judges.Job("canaries")
    record = judges.stitched(
        job, tmp_path / "out", 8, tmp_path / "store", environ={"STITCH_DUMP": str(dump)}
    )
    assert judges.stitched_steps(record), record.lines
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert {"requests", "artifacts", "answers", "sessions"} <= {
        part for path in files for part in path.parts
    }
    held = {path: path.read_bytes() for path in files}
    for secret in SECRETS.values():
        assert not [str(path) for path, data in held.items() if secret in data]
        assert secret.decode() not in record.out.joinpath("stderr.txt").read_text()
    assert any(NAME in data for data in held.values()), "the scan finds what is there"
