"""Makes asr_infer: the speech model of asr_train, without dropout, as it answers a request.

`python -m tests.workloads.make_asr_infer`, with TensorFlow. Convolutions that subsample, an LSTM,
four blocks of attention (batch 16, 128 frames of 80 bands); weights are parameters, as in all.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import keras
import tensorflow as tf

BATCH, WIDTH = 16, 256


def model() -> keras.Model:
    layers = keras.layers
    frames = layers.Input((128, 80, 1))
    x = frames
    for _ in range(2):
        x = layers.Conv2D(32, 3, 2, padding="same", activation="relu")(x)
    x = layers.Dense(WIDTH)(layers.Reshape((32, 640))(x))
    x = layers.LSTM(WIDTH, return_sequences=True)(x)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 64)(y, y)])
        y = layers.Dense(1024, activation="swish")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(WIDTH)(y)])
    return keras.Model(frames, layers.Dense(500)(layers.LayerNormalization()(x)))


def main() -> None:
    keras.utils.set_random_seed(0)
    made = model()
    answer = tf.function(lambda x: made(x, training=False), jit_compile=True, autograph=False)
    spec = tf.TensorSpec((BATCH, 128, 80, 1), tf.float32)
    text = answer.experimental_get_compiler_ir(spec)(stage="hlo")
    if "{...}" in text:
        raise SystemExit("a large constant is not written out")
    entry = text[text.index("\nENTRY") :]
    found = re.findall(r"= (\w+)\[([\d,]*)\]\S* parameter\((\d+)\)", entry)
    described = [
        {"index": int(n), "dtype": dtype, "dims": [int(d) for d in dims.split(",") if d]}
        for dtype, dims, n in found
    ]
    described.sort(key=lambda parameter: parameter["index"])
    outputs = [{"dtype": "f32", "dims": [BATCH, 32, 500]}]
    folder = Path(__file__).parent
    (folder / "asr_infer.hlo.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    record = {"name": "asr_infer", "parameters": described, "outputs": outputs}
    (folder / "asr_infer.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
