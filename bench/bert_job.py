"""BERT-base (12 layers of 768, 12 heads, vocabulary 30522) trained by Keras fit with Adam.

The training job of `python -m bench.bert`: a few steps on random tokens, as any user would write
them; it knows nothing of stitching.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

VOCABULARY, INTERMEDIATE = 30522, 4
layers = tf.keras.layers


class Embeddings(layers.Layer):
    """Sum of token and position embeddings, normalized."""

    def __init__(self, hidden: int, sequence: int) -> None:
        super().__init__()
        self.tokens = layers.Embedding(VOCABULARY, hidden)
        self.positions = layers.Embedding(sequence, hidden)
        self.normalization = layers.LayerNormalization(epsilon=1e-12)
        self.dropout = layers.Dropout(0.1)
        self.sequence = sequence

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        summed = self.tokens(tokens) + self.positions(tf.range(self.sequence))
        return self.dropout(self.normalization(summed))


def encoder(x: tf.Tensor, hidden: int, heads: int) -> tf.Tensor:
    attended = layers.MultiHeadAttention(heads, hidden // heads, dropout=0.1)(x, x)
    x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(0.1)(attended))
    y = layers.Dense(INTERMEDIATE * hidden, activation="gelu")(x)
    y = layers.Dropout(0.1)(layers.Dense(hidden)(y))
    return layers.LayerNormalization(epsilon=1e-12)(x + y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    tf.keras.utils.set_random_seed(1)
    tokens = tf.keras.Input((options.sequence,), dtype="int32")
    x = Embeddings(options.hidden, options.sequence)(tokens)
    for _ in range(options.layers):
        x = encoder(x, options.hidden, options.hidden // 64)
    x = layers.Dense(options.hidden, activation="gelu")(x)
    model = tf.keras.Model(tokens, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-4), loss, jit_compile=False)
    random = np.random.default_rng(1)
    shape = (options.batch * options.steps, options.sequence)
    data = random.integers(0, VOCABULARY, shape).astype(np.int32)
    model.fit(data, data, batch_size=options.batch, epochs=1, verbose=0)


if __name__ == "__main__":
    main()
