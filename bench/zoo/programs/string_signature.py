"""A SavedModel's signature takes sentences: lower, regex, split, hash, n-grams, a ragged mean, top 3."""

import tempfile

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(64)
WORDS = "The cat, dog! sat on a Mat near old trees; rivers? run fast slow and never stop".split()


class Scorer(tf.Module):
    def __init__(self):
        super().__init__()
        self.table = tf.Variable(numbers.normal(0, 0.3, (512, 32)).astype("float32"))
        self.first = tf.Variable(numbers.normal(0, 0.2, (64, 96)).astype("float32"))
        self.gain = tf.Variable(np.ones(96, "float32"))
        self.second = tf.Variable(numbers.normal(0, 0.2, (96, 20)).astype("float32"))
        keys = tf.constant([f"class{i}" for i in range(20)])
        self.names = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.range(20, dtype=tf.int64), keys), "none"
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, sentences):
        clean = tf.strings.regex_replace(tf.strings.lower(sentences), r"[^a-z ]", "")
        words = tf.strings.split(clean)
        pairs = tf.strings.ngrams(words, 2, separator="_")
        bags = []
        for tokens in (words, pairs):
            ids = tf.strings.to_hash_bucket_fast(tokens.values, 512)
            rows = tf.gather(self.table, ids)
            rowids = tokens.value_rowids()
            total = tf.math.unsorted_segment_sum(rows, rowids, tokens.nrows())
            count = tf.cast(tf.maximum(tokens.row_lengths(), 1), tf.float32)
            bags.append(total / count[:, None])
        h = tf.concat(bags, -1) @ self.first
        mean, variance = tf.nn.moments(h, [-1], keepdims=True)
        h = tf.nn.gelu((h - mean) * tf.math.rsqrt(variance + 1e-6) * self.gain)
        scores = tf.nn.softmax(h @ self.second)
        top, classes = tf.math.top_k(scores, 3)
        entropy = -tf.reduce_sum(scores * tf.math.log(scores + 1e-9), -1)
        return {
            "scores": top,
            "classes": self.names.lookup(tf.cast(classes, tf.int64)),
            "entropy": entropy,
            "length": words.row_lengths(),
        }


def sentences(count):
    return [" ".join(numbers.choice(WORDS, numbers.integers(2, 14))) for _ in range(count)]


with tempfile.TemporaryDirectory() as folder:
    scorer = Scorer()
    tf.saved_model.save(scorer, folder, signatures={"serving_default": scorer.serve})
    served = tf.saved_model.load(folder).signatures["serving_default"]
    for call in range(150):
        found = served(sentences=tf.constant(sentences((32, 7, 64, 1)[call % 4])))
        watch.step(**found)
        if call % 30 == 29:
            best = found["classes"].numpy()[0, 0].decode()
            print("call", call, best, f"{float(found['entropy'][0]):.5f}")
