"""transformers: the first GPT writes greedily, one word a call of a `tf.function` of unknown length."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import OpenAIGPTConfig, TFOpenAIGPTLMHeadModel

keras.utils.set_random_seed(77)
numbers = np.random.default_rng(77)
config = OpenAIGPTConfig(vocab_size=90, n_positions=40, n_embd=32, n_layer=2, n_head=4)
model = TFOpenAIGPTLMHeadModel(config)


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
def following(ids):
    logits = model(ids, training=False).logits[:, -1]
    return tf.argmax(logits, -1, tf.int32), tf.nn.softmax(logits)


for start in range(3):
    ids = tf.constant(numbers.integers(0, 90, (4, 3)), tf.int32)
    for _ in range(12):
        word, shares = following(ids)
        watch.step(word, shares)
        ids = tf.concat([ids, word[:, None]], 1)
    print("start", start, *ids.numpy()[0], f"{float(tf.reduce_max(shares)):.5f}")
