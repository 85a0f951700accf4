"""A Fourier neural operator: complex products of spectra, gelu, Nadam by hand."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(5)
W, MODES, N = 16, 8, 64
lift = tf.Variable(numbers.normal(0, 0.5, (2, W)).astype("float32"))
spec = [tf.Variable(numbers.normal(0, 1 / W, (2, MODES, W, W)).astype("float32")) for _ in range(3)]
local = [tf.Variable(numbers.normal(0, 0.2, (W, W)).astype("float32")) for _ in range(3)]
head = tf.Variable(numbers.normal(0, 0.3, (W, 1)).astype("float32"))
variables = [lift, *spec, *local, head]
optimizer = tf.keras.optimizers.Nadam(2e-3)
optimizer.build(variables)


def model(x):
    x = tf.tensordot(x, lift, 1)
    for s, direct in zip(spec, local):
        f = tf.signal.rfft(tf.transpose(x, [0, 2, 1]))[:, :, :MODES]
        w = tf.complex(s[0], s[1])
        f = tf.einsum("bim,mio->bom", f, w)
        f = tf.pad(f, [[0, 0], [0, 0], [0, N // 2 + 1 - MODES]])
        y = tf.transpose(tf.signal.irfft(f, [N]), [0, 2, 1])
        x = tf.nn.gelu(y + tf.tensordot(x, direct, 1))
    return tf.tensordot(x, head, 1)[..., 0]


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        out = model(x)
        error = tf.norm(out - y, axis=1) / tf.norm(y, axis=1)
        loss = tf.reduce_mean(error)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


watch.start(variables)
grid = np.linspace(0, 1, N, endpoint=False, dtype="float32")
for _step in range(80):
    a = numbers.normal(0, 1, (32, 3, 1)).astype("float32")
    u = (a * np.sin(2 * np.pi * np.arange(1, 4)[None, :, None] * grid)).sum(1)
    y = np.tanh(u) + 0.5
    x = np.stack([u, np.broadcast_to(grid, u.shape)], -1).astype("float32")
    loss = train(tf.constant(x), tf.constant(y.astype("float32")))
    watch.step(variables, optimizer, loss=loss)
print(f"{float(loss):.3f}")
