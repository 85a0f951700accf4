"""Keras fit on two inputs that never meet: their leading sizes agree at first, then differ.

Elements come from a generator, so both sizes are unknown to TensorFlow and nothing relates them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import recording
import tensorflow as tf

FEATURES, WIDTH, ROWS = 256, 1024, 1024
AGREEING = 12  # steps, of which some are stitched already when the sizes part


class Towers(tf.keras.Model):
    """Two networks trained in one step on inputs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = [
            tf.keras.Sequential(
                [
                    tf.keras.layers.Dense(WIDTH, activation="gelu"),
                    tf.keras.layers.LayerNormalization(),
                    tf.keras.layers.Dense(FEATURES),
                ]
            )
            for _ in range(2)
        ]

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> list[tf.Tensor]:
        return [tower(x) for tower, x in zip(self.towers, inputs)]

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = self(data)
            errors = [tf.square(y - tf.tanh(x)) for x, y in zip(data, outputs)]
            loss = tf.add_n([tf.reduce_mean(error) for error in errors])
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def elements() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sizes: equal, then two that differ, then one row beside many."""
    random = np.random.default_rng(recording.SEED + 1)
    for step in range(1 << 20):
        sizes = (ROWS, ROWS)
        if step >= AGREEING:
            sizes = ((ROWS, ROWS // 3), (1, ROWS), (ROWS // 2, 1))[step % 3]
        yield tuple(random.standard_normal((n, FEATURES)).astype("float32") for n in sizes)


def main() -> None:
    options = recording.arguments(__doc__)
    tf.keras.utils.set_random_seed(recording.SEED)
    model = Towers()
    model([tf.zeros((1, FEATURES))] * 2)
    model.compile(optimizer=recording.make_optimizer(options.optimizer, 1e-4))
    row = tf.TensorSpec((None, FEATURES), tf.float32)
    data = tf.data.Dataset.from_generator(elements, output_signature=(row, row))
    recording.fit(model, data, None, options, None)


if __name__ == "__main__":
    main()
