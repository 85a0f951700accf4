"""transformers: Whisper learns from short spectrograms, `fit` through a wrapping Keras 2 model."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import TFWhisperForConditionalGeneration, WhisperConfig

keras.utils.set_random_seed(75)
numbers = np.random.default_rng(75)
config = WhisperConfig(
    vocab_size=80, num_mel_bins=16, d_model=32, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
    max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
)  # fmt: skip
model = TFWhisperForConditionalGeneration(config)
model(input_features=tf.zeros([1, 16, 40]), labels=tf.ones([1, 8], tf.int32))
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)


@tf.function
def train(features, labels):
    with tf.GradientTape() as tape:
        loss = model(input_features=features, labels=labels, training=True).loss
        loss = tf.reduce_mean(loss)
    gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss, norm


watch.start(model)
for step in range(16):
    features = tf.constant(numbers.normal(size=(4, 16, 40)), tf.float32)
    loss, norm = train(features, tf.constant(numbers.integers(3, 80, (4, 8)), tf.int32))
    watch.step(model, optimizer, loss=loss, norm=norm)
    if step % 4 == 3:
        print("step", step, f"{float(loss):.4f} {float(norm):.4f}")
