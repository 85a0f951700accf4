"""The workload modules: real training and inference steps as HLO text."""

from __future__ import annotations

import functools
import lzma
from pathlib import Path

from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse

FOLDER = Path(__file__).parents[1] / "workloads"
NAMES = sorted(path.name.removesuffix(".hlo.xz") for path in FOLDER.glob("*.hlo.xz"))
TWINS = [
    ("mlp_train", "mlp_train.B384", 256, 384),
    ("dien_train", "dien_train.B384", 256, 384),
    ("lstm_lm_train", "lstm_lm_train.B28", 20, 28),
    ("transformer_train", "transformer_train.B48", 32, 48),
]
"""(module, the same step at another batch size, the two sizes)."""


@functools.cache
def text(name: str) -> str:
    return lzma.open(FOLDER / f"{name}.hlo.xz", "rt").read()


@functools.cache
def module(name: str) -> Module:
    return parse(text(name))
