"""transformers: DeBERTa v2's disentangled attention, evaluated batch by batch."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import DebertaV2Config, TFDebertaV2ForSequenceClassification

keras.utils.set_random_seed(73)
numbers = np.random.default_rng(73)
config = DebertaV2Config(
    vocab_size=150, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=32, relative_attention=True, pos_att_type=["c2p", "p2c"],
    position_buckets=8, num_labels=3,
)  # fmt: skip
model = TFDebertaV2ForSequenceClassification(config)


@tf.function(input_signature=[tf.TensorSpec([None, 16], tf.int32)] * 2)
def infer(ids, mask):
    logits = model(input_ids=ids, attention_mask=mask, training=False).logits
    return tf.nn.log_softmax(logits)


for call in range(20):
    ids = numbers.integers(1, 150, (6, 16))
    mask = np.arange(16) < numbers.integers(6, 17, (6, 1))
    found = infer(tf.constant(ids, tf.int32), tf.constant(mask, tf.int32))
    watch.step(found)
    if call % 5 == 4:
        print("call", call, f"{float(tf.reduce_mean(found)):.5f}", *tf.argmax(found, 1).numpy())
