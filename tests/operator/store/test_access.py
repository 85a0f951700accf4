"""The table of roles and the names of the store, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_operator.store.access import DELETE, READ, ROLES, WRITE, allowed, parts_of


@pytest.mark.parametrize(
    "path",
    ["", "/", "..", "a/..", "a//b", "/etc/passwd", "a/./b", "a\\b", "a/b\n", "a\0", "a/b/c/d/e",
     "x" * 201],
)  # fmt: skip
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="path of the store"):
        parts_of(path)


@given(st.text())
def test_a_path_stays_below_the_root(path: str) -> None:
    try:
        parts = parts_of(path)
    except ValueError:
        return
    assert "/".join(parts) == path
    assert not {"", ".", ".."} & set(parts)


@pytest.mark.parametrize("role", ["gateway", "worker"])
@pytest.mark.parametrize("verb", [WRITE, DELETE])
@pytest.mark.parametrize("name", ["artifacts/k/manifest.json", "public_keys.json", "revoked.json"])
def test_only_the_signer_touches_what_is_signed(role: str, verb: str, name: str) -> None:
    assert not allowed(role, verb, parts_of(name))


FOLDERS = sorted({name for table in ROLES.values() for name in table})


@pytest.mark.parametrize("folder", FOLDERS)
def test_gateway_and_worker_delete_nothing_and_the_gateway_writes_requests_alone(
    folder: str,
) -> None:
    assert not any(allowed(role, DELETE, (folder, "k", "a")) for role in ("gateway", "worker"))
    assert allowed("gateway", WRITE, (folder, "k", "a")) == (folder == "requests")
    assert not any(allowed("collector", verb, ("public_keys.json",)) for verb in (WRITE, DELETE))


@given(st.sampled_from(sorted(ROLES)), st.sampled_from([WRITE, DELETE]))
def test_nobody_changes_a_whole_folder(role: str, verb: str) -> None:
    folders = {name for table in ROLES.values() for name in table if not name.endswith(".json")}
    assert not any(allowed(role, verb, (folder,)) for folder in folders)


@given(st.text(min_size=1), st.sampled_from([READ, WRITE, DELETE]))
def test_who_has_no_role_may_do_nothing(role: str, verb: str) -> None:
    if role not in ROLES:
        assert not any(allowed(role, verb, (name,)) for name in ("requests", "artifacts"))
        assert not allowed(role, verb, (".probe-1",))


def test_no_role_reaches_what_nobody_knows() -> None:
    assert not any(allowed(role, READ, ("ledger.sqlite",)) for role in ROLES)
    assert not any(allowed(role, READ, (".received", "x")) for role in ROLES)
