"""Settings of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcore import options
from stitchcore.options import BadOption


def test_defaults_follow_the_users_folders() -> None:
    found = options.read({"HOME": "/home/me"})
    assert found.store == Path("/home/me/.cache/stitch/store")
    assert found.key == Path("/home/me/.local/share/stitch/signing.key")
    assert options.read({"XDG_CACHE_HOME": "/c"}).cache == Path("/c/stitch/kernels")


def test_every_documented_variable_is_read() -> None:
    text = options.__doc__ or ""
    documented = {line.split("|")[1].strip() for line in text.splitlines() if "STITCH_" in line}
    read: set[str] = set()

    class Spy(dict[str, str]):
        def get(self, name: str, default: object = None) -> str | None:  # type: ignore[override]
            read.add(name)
            return None

    options.read(Spy())
    options.broker_url(Spy())
    options.leases_url(Spy())
    options.ledger_url(Spy())
    options.reserved_cores(Spy())

    class Given(Spy):
        def get(self, name: str, default: object = None) -> str | None:  # type: ignore[override]
            super().get(name)
            return "set"

        def __missing__(self, name: str) -> str:
            return "set"

    options.store_access(Given(), "stitch://store:8444")
    assert {name for name in read if name.startswith("STITCH_")} == documented


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STITCH_JOBS", "0"),
        ("STITCH_JOBS", "x"),
        ("STITCH_VERIFY_PASSES", "yes"),
        ("STITCH_WORKER_MEMORY", "1"),
        ("STITCH_WAIT", "-1"),
    ],
)
def test_values_that_cannot_be_used_are_named(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        options.read({name: value})


def test_the_signature_holds_what_changes_artifacts() -> None:
    plain = options.read({})
    assert plain.signature != options.read({"STITCH_PLANNER": "explore"}).signature
    assert plain.signature != options.read({"STITCH_TUNE": "20"}).signature
    assert plain.signature == options.read({"STITCH_JOBS": "1"}).signature
    left_out = [options.read({"STITCH_WITHOUT": words}) for words in ("remote, atm", "atm,remote,")]
    assert left_out[0].without == left_out[1].without == ("atm", "remote")
    assert plain.signature != left_out[0].signature == left_out[1].signature


def test_a_jobs_worker_is_told_of_its_library(tmp_path: Path) -> None:
    from stitchcore.cli import optimize, optimize_child

    named = {"STITCH_LIBRARY": str(tmp_path), "STITCH_WITHOUT": "atm"}
    for environment in ({}, named):
        given = options.read({"HOME": "/home/me", **environment})
        command = optimize_child._command(given, "python")
        told = optimize._arguments(command[3:])
        assert (told.library, told.without) == (given.library, ",".join(given.without))
