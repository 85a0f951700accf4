"""Modules of the benchmark with a line changed: what a claim must not hold of."""

from __future__ import annotations

import sys
import types

import pytest


def changed(
    module: types.ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> types.ModuleType:
    """`module` made anew from its source with `new` in place of `old`, which is there once."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        source = file.read()
    assert source.count(old) == 1, f"{source.count(old)} times in {module.__name__}: {old}"
    made = types.ModuleType(f"{module.__name__}_changed")
    made.__file__ = module.__file__
    monkeypatch.setitem(sys.modules, made.__name__, made)  # dataclasses look themselves up there
    exec(compile(source.replace(old, new), module.__file__, "exec"), made.__dict__)
    return made
