"""What makes imports of a process that runs tests cost seconds, and that hardly a test of it uses.

jsonschema imports rfc3987_syntax, which makes the parser of a grammar there and then (2.3 s): it is
put off until somebody asks whether a text is an IRI. TensorFlow imports jax, matplotlib and pandas
(2.3 s): it does without them here as in jobs and workers, and who imports them finds them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from stitchcore.tensorflow.import_blocklist import NAMES

GRAMMAR = "rfc3987_syntax"


class StandIn(ModuleType):
    """In the grammar's place in sys.modules until the first call."""

    @staticmethod
    def is_valid_syntax(*given: Any) -> bool:
        if isinstance(sys.modules[GRAMMAR], StandIn):
            del sys.modules[GRAMMAR]
        return bool(importlib.import_module(GRAMMAR).is_valid_syntax(*given))


class TensorFlowAlone(MetaPathFinder, Loader):
    """TensorFlow is imported while NAMES cannot be."""

    loader: Any

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow" or (spec := PathFinder.find_spec(name, path, target)) is None:
            return None
        self.loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        hidden = [name for name in NAMES if name not in sys.modules]
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # ImportError, then
        try:
            self.loader.exec_module(module)
        finally:
            for name in hidden:
                del sys.modules[name]


def install() -> None:
    """Before jsonschema and TensorFlow are imported."""
    if GRAMMAR not in sys.modules and importlib.util.find_spec(GRAMMAR) is not None:
        sys.modules[GRAMMAR] = StandIn(GRAMMAR)
    sys.meta_path.insert(0, TensorFlowAlone())
