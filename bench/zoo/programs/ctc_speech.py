"""Speech: log-mel features in the graph, convolutions and a GRU, CTC loss with sparse labels."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(53)
layers, numbers = keras.layers, np.random.default_rng(53)
LETTERS = 12
mel = tf.signal.linear_to_mel_weight_matrix(24, 65, 8000, 60.0, 3800.0)
encoder = keras.Sequential(
    [
        keras.Input((None, 24)),
        layers.Conv1D(32, 5, strides=2, padding="same", activation="relu"),
        layers.BatchNormalization(),
        layers.GRU(32, return_sequences=True),
        layers.Dense(LETTERS + 1),
    ]
)
optimizer = keras.optimizers.Adam(2e-3)
optimizer.build(encoder.trainable_variables)


def features(wave):
    spectrum = tf.signal.stft(wave, frame_length=128, frame_step=64)
    power = tf.square(tf.abs(spectrum))
    logs = tf.math.log(tf.tensordot(power, mel, 1) + 1e-6)
    mean, variance = tf.nn.moments(logs, axes=[1, 2], keepdims=True)
    return (logs - mean) * tf.math.rsqrt(variance + 1e-5)


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None]),
        tf.SparseTensorSpec([None, None], tf.int32),
        tf.TensorSpec([None], tf.int32),
    ]
)
def train(wave, labels, lengths):
    with tf.GradientTape() as tape:
        logits = encoder(features(wave), training=True)
        frames = tf.minimum((lengths - 128) // 64 // 2, tf.shape(logits)[1])
        losses = tf.nn.ctc_loss(
            labels,
            tf.transpose(logits, [1, 0, 2]),
            None,
            frames,
            logits_time_major=True,
            blank_index=LETTERS,
        )
        loss = tf.reduce_mean(losses / tf.cast(frames, tf.float32))
    gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, encoder.trainable_variables), 5.0)
    optimizer.apply_gradients(zip(gradients, encoder.trainable_variables))
    return loss, norm


def batch(size, step):
    seconds = 1600 + 320 * (step % 3)
    rows = [numbers.integers(0, LETTERS, numbers.integers(2, 6)) for _ in range(size)]
    wave = np.zeros((size, seconds), "float32")
    for row, letters in zip(wave, rows):
        for at, letter in enumerate(letters):
            here = slice(at * 300, at * 300 + 280)
            row[here] = np.sin(np.arange(280) * (0.2 + 0.15 * letter))[: len(row[here])]
    wave += numbers.normal(0, 0.05, wave.shape)
    sparse = tf.ragged.constant([list(map(int, row)) for row in rows], tf.int32).to_sparse()
    return tf.constant(wave), sparse, tf.fill([size], seconds)


watch.start(encoder)
for step in range(60):
    loss, norm = train(*batch(8, step))
    watch.step(encoder, optimizer, loss=loss, norm=norm)
    if step % 15 == 14:
        print("step", step, f"{float(loss):.4f}")
wave, sparse, lengths = batch(4, 0)
logits = tf.transpose(encoder(features(wave)), [1, 0, 2])
decoded, _ = tf.nn.ctc_greedy_decoder(logits, tf.fill([4], tf.shape(logits)[0]))
print("edits", tf.edit_distance(decoded[0], tf.cast(sparse, tf.int64), False).shape)
