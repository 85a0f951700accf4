"""TF1: two dynamic_rnn cells, sequence lengths, GradientDescent with exponential decay and clipping, feed_dict."""

import numpy as np
import tensorflow.compat.v1 as tf
import watch

tf.disable_eager_execution()
numbers = np.random.default_rng(3)
T, B, D, H = 12, 16, 10, 24
x = tf.placeholder(tf.float32, [None, T, D])
lengths = tf.placeholder(tf.int32, [None])
y = tf.placeholder(tf.float32, [None])
w = tf.get_variable(
    "w", [D + H, 4 * H], initializer=tf.constant_initializer(numbers.normal(0, 0.2, (D + H, 4 * H)))
)
b = tf.get_variable("b", [4 * H], initializer=tf.zeros_initializer())
out = tf.get_variable("out", [H], initializer=tf.constant_initializer(numbers.normal(0, 0.2, H)))
ta = tf.TensorArray(tf.float32, T).unstack(tf.transpose(x, [1, 0, 2]))


def body(t, c, h):
    z = tf.matmul(tf.concat([ta.read(t), h], 1), w) + b
    i, j, f, o = tf.split(z, 4, 1)
    nc = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
    nh = tf.sigmoid(o) * tf.tanh(nc)
    live = (t < lengths)[:, None]
    live = tf.broadcast_to(live, tf.shape(nh))
    return t + 1, tf.where(live, nc, c), tf.where(live, nh, h)


zero = tf.zeros([tf.shape(x)[0], H])
_, c, h = tf.while_loop(lambda t, c, h: t < T, body, [0, zero, zero], swap_memory=True)
prediction = tf.reduce_sum(h * out, 1)
loss = tf.losses.huber_loss(y, prediction)
step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.3, step, 10, 0.9)
optimizer = tf.train.MomentumOptimizer(rate, 0.9)
pairs = [(tf.clip_by_norm(g, 1.0), v) for g, v in optimizer.compute_gradients(loss)]
train = optimizer.apply_gradients(pairs, global_step=step)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    names = [w, b, out]
    for _k in range(60):
        data = numbers.normal(0, 1, (B, T, D)).astype("float32")
        n = numbers.integers(3, T + 1, B).astype("int32")
        target = np.tanh(data[:, :3].sum((1, 2)) / 3).astype("float32")
        _, value = session.run([train, loss], {x: data, lengths: n, y: target})
        watch.step(loss=value, **{f"v{i}": v for i, v in enumerate(session.run(names))})
    print(f"{value:.3f}")
