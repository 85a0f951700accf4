"""What the papers print, as data: FusionStitching 2020 (arXiv:2009.10924v2) and AStitch (ASPLOS
2022), and which of our modules stands for which of their models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A model of the papers. `module` is ours, by name; `differs` says in what it is not theirs."""

    name: str
    module: str
    differs: str = ""


MODELS: tuple[Model, ...] = (
    Model("BERT-train", "bert_train"),
    Model("BERT-infer", "bert_infer"),
    Model("DIEN-train", "dien_train"),
    Model("DIEN-infer", "dien_infer"),
    Model("Transformer-train", "transformer_train"),
    Model("Transformer-infer", "transformer_dec_step", "one decoding step of many"),
    Model("ASR", "asr_infer", "its LSTM is a loop, whose body counts once"),
    Model("CRNN", "crnn_infer", "its LSTM is a loop, whose body counts once"),
)
"""None of the papers gives layer counts or widths, so no count can be theirs to the last digit."""


@dataclass(frozen=True)
class Kernels:
    """Kernels by class, as FusionStitching 2020 counts: GEMM and convolution, memory-intensive,
    memcpy and memset."""

    math: int
    memory: int
    copies: int


FS20_TABLE_2: Mapping[str, Mapping[str, Kernels]] = {
    "BERT-train": {"TF": Kernels(98, 561, 102), "XLA": Kernels(98, 200, 97),
                   "FS": Kernels(98, 98, 20)},
    "BERT-infer": {"TF": Kernels(70, 365, 106), "XLA": Kernels(98, 277, 94),
                   "FS": Kernels(98, 77, 30)},
    "DIEN-train": {"TF": Kernels(1218, 10406, 1391), "XLA": Kernels(1215, 6842, 1996),
                   "FS": Kernels(1215, 2109, 1395)},
    "DIEN-infer": {"TF": Kernels(406, 3680, 225), "XLA": Kernels(405, 2585, 627),
                   "FS": Kernels(405, 815, 422)},
    "Transformer-train": {"TF": Kernels(399, 2497, 522), "XLA": Kernels(405, 903, 577),
                          "FS": Kernels(400, 423, 369)},
    "ASR": {"TF": Kernels(76, 1359, 439), "XLA": Kernels(4, 386, 257), "FS": Kernels(4, 187, 284)},
    "CRNN": {"TF": Kernels(256, 3674, 890), "XLA": Kernels(7, 993, 406),
             "FS": Kernels(8, 311, 388)},
}  # fmt: skip
FS20_MEMORY_SHARE = 0.38
"""Memory-intensive kernels that FusionStitching 2020 has of XLA's, on average."""

ASTITCH_PACKED_ROWS = (750_000, 32)
"""Rows and columns of AStitch's example of horizontal packing: 32 rows in one block."""

FS20_CRNN_READS = (667.6e6, 225.8e6)
"""Bytes that CRNN reads off chip under XLA and FusionStitching 2020."""


@dataclass(frozen=True)
class Stitched:
    """AStitch's Table 3: XLA's and its memory-intensive kernels, and copies."""

    memory_xla: int
    memory: int
    copies_xla: int
    copies: int


ASTITCH_TABLE_3: Mapping[str, Stitched] = {
    "CRNN": Stitched(986, 297, 406, 388),
    "ASR": Stitched(496, 218, 372, 203),
    "BERT-infer": Stitched(64, 26, 25, 10),
    "Transformer-infer": Stitched(10132, 2578, 5579, 1474),
    "DIEN-infer": Stitched(2579, 811, 628, 422),
}
ASTITCH_MEMORY_SHARE = 0.343
"""Of XLA's memory-intensive kernels, on average: 65.7 % fewer."""

ASTITCH_ABLATION: Mapping[str, float] = {
    "XLA": 23.95,
    "and adaptive thread mapping": 21.98,
    "and stitching, dominants not merged": 20.45,
    "all": 17.64,
}
"""Milliseconds of CRNN inference on a V100."""

ASTITCH_SPEEDUPS: Mapping[str, float] = {
    "CRNN": 1.36, "ASR": 1.77, "BERT-infer": 1.12, "Transformer-infer": 2.73, "DIEN-infer": 2.25,
}  # fmt: skip
"""Over XLA on a V100, whole steps of inference: ratios of two bars of the paper's figure, so within
2 %."""

ASTITCH_COMPILE_SECONDS = {"XLA": 30.0, "AStitch": 90.0}
"""Of graphs of 5,000 to 10,000 nodes, up to LLVM IR."""
