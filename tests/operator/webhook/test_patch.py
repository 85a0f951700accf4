"""JSON pointers and the few operations that patches are made of."""

from __future__ import annotations

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from stitch_operator.webhook.patch import entries, extend, pointer

TEXT = st.text(st.sampled_from("a/~01é"), max_size=4)
MAPS = st.dictionaries(TEXT, TEXT)


def test_pointers_are_escaped() -> None:
    assert pointer("a/b", "c~d", 0, "") == "/a~1b/c~0d/0/"


@given(st.none() | MAPS, st.dictionaries(TEXT, st.none() | TEXT))
def test_maps_become_what_is_wanted(present: dict[str, str] | None, wanted: dict[str, str]) -> None:
    document = {} if present is None else {"m": present}
    made = jsonpatch.apply_patch(document, entries(present, wanted, "m"))
    expected = {**(present or {}), **wanted}
    assert made.get("m", {}) == {k: v for k, v in expected.items() if v is not None}
    assert entries(made.get("m"), wanted, "m") == []


@given(st.none() | st.lists(TEXT), st.lists(TEXT))
def test_lists_grow_at_their_end(present: list[str] | None, values: list[str]) -> None:
    document = {} if present is None else {"l": present}
    made = jsonpatch.apply_patch(document, extend(present, values, "l"))
    assert made.get("l", []) == [*(present or []), *values]
