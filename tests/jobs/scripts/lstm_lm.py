"""A two-layer LSTM language model: Keras layers inside a tf.function, a loop over the sequence."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

VOCABULARY, WIDTH, SEQUENCE, BATCH = 2000, 256, 24, 64
layers = tf.keras.layers


def build() -> tf.keras.Model:
    tokens = tf.keras.Input((SEQUENCE,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(tokens)
    for position in range(2):
        x = layers.LSTM(WIDTH, return_sequences=True)(x)
        x = recording.Dropout(0.2, seed=position)(x)
    return tf.keras.Model(tokens, layers.Dense(VOCABULARY)(x))


def main() -> None:
    options = recording.arguments(__doc__)
    recorder = recording.Recorder(options.out)
    tf.keras.utils.set_random_seed(recording.SEED)
    tf.keras.backend.set_floatx(options.dtype)
    model = build()
    weights = list(model.trainable_variables)
    if options.checkpoint:
        recording.restore(options.checkpoint, weights)
    optimizer = recording.make_optimizer(options.optimizer, 1e-3)
    optimizer.build(weights)
    recorder.save("initial.npz", recording.values("weight", weights))
    random = np.random.default_rng(recording.SEED + 1)
    stream = random.integers(0, VOCABULARY, (BATCH, SEQUENCE + 1)).astype("int32")
    tokens, targets = tf.constant(stream[:, :-1]), tf.constant(stream[:, 1:])

    @tf.function
    def train_step(tokens: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, list]:
        with tf.GradientTape() as tape:
            logits = model(tokens, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss, gradients

    state = [*weights, *recording.slots(optimizer)]
    recording.take_back(options, state, lambda: train_step(tokens, targets))
    for _ in range(options.steps):
        recorder.begin()
        loss, gradients = train_step(tokens, targets)
        if recorder.end(float(loss)) == 1:
            after = recording.values("variable", weights)
            after |= recording.values("slot", recording.slots(optimizer))
            recorder.save("step1.npz", after | recording.values("gradient", gradients))
    recorder.finish(recording.update_rule(optimizer))


if __name__ == "__main__":
    main()
