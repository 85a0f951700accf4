"""Adapters of workloads: a new kind is a new module of this folder, with its `ADAPTER`."""

from __future__ import annotations

import importlib
import pkgutil

from stitch_operator.webhook.adapters.adapter import Adapter


def _adapters() -> list[Adapter]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [module.ADAPTER for module in modules if hasattr(module, "ADAPTER")]


ADAPTERS: dict[tuple[str, str], Adapter] = {(one.group, one.kind): one for one in _adapters()}
"""By API group and kind."""
