"""word2vec with sampled softmax and NCE: sparse gradients, Adagrad and lazy momentum of IndexedSlices."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(17)
V, D = 2000, 48
table = tf.Variable(numbers.normal(0, 0.1, (V, D)).astype("float32"))
out = tf.Variable(numbers.normal(0, 0.1, (V, D)).astype("float32"))
bias = tf.Variable(tf.zeros(V))
optimizer = tf.keras.optimizers.Adagrad(0.3)
optimizer.build([table, out, bias])
momentum = tf.Variable(tf.zeros([V, D]))


@tf.function
def train(words, context, sampled):
    with tf.GradientTape() as tape:
        x = tf.nn.embedding_lookup(table, words)
        true = tf.reduce_sum(x * tf.gather(out, context), 1) + tf.gather(bias, context)
        wrong = tf.matmul(x, tf.gather(out, sampled), transpose_b=True) + tf.gather(bias, sampled)
        wrong = tf.where(context[:, None] == sampled[None], -1e9, wrong)
        logits = tf.concat([true[:, None], wrong], 1)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros_like(context), logits)
        )
        loss += 1e-4 * tf.nn.l2_loss(x)
    gradients = tape.gradient(loss, [table, out, bias])
    optimizer.apply_gradients(zip(gradients, [table, out, bias]))
    return loss


@tf.function
def lazy(words, context):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.nn.nce_loss(
                out,
                bias,
                context[:, None],
                tf.gather(table, words),
                16,
                V,
                sampled_values=(
                    tf.range(16, dtype=tf.int64),
                    tf.fill([tf.shape(words)[0], 1], 0.01),
                    tf.fill([16], 0.01),
                ),
            )
        )
    g = tape.gradient(loss, table)
    rows = tf.gather(momentum, g.indices) * 0.9 + g.values
    momentum.scatter_nd_update(g.indices[:, None], rows)
    table.scatter_sub(tf.IndexedSlices(0.05 * rows, g.indices))
    return loss


watch.start([table, out, bias])
for _step in range(80):
    words = numbers.permutation(V)[:128].astype("int64")
    context = (words + numbers.integers(1, 4, 128)) % V
    sampled = numbers.permutation(V)[:64].astype("int64")
    a = train(tf.constant(words), tf.constant(context), tf.constant(sampled))
    b = lazy(tf.constant(words), tf.constant(context))
    watch.step([table, out, bias, momentum], optimizer, a=a, b=b)
print(f"{float(a):.3f} {float(b):.3f}")
