"""A radiance field: positional encoding, volume rendering by exclusive cumprod, inverse-transform sampling with searchsorted."""

import numpy as np
import tensorflow as tf
import watch

tf.keras.utils.set_random_seed(31)
L = tf.keras.layers
inputs = tf.keras.Input((3 + 3 * 2 * 6,))
x = L.Dense(64, "relu")(inputs)
x = L.Dense(64, "relu")(L.Concatenate()([x, inputs]))
outputs = L.Dense(4)(x)
model = tf.keras.Model(inputs, outputs)
optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(5e-3, 20, 0.8))


def encode(p):
    bands = [p]
    for i in range(6):
        bands += [tf.sin(2.0**i * p), tf.cos(2.0**i * p)]
    return tf.concat(bands, -1)


def render(origins, directions, z):
    points = origins[:, None] + directions[:, None] * z[..., None]
    flat = tf.reshape(points, [-1, 3])
    raw = tf.reshape(model(encode(flat)), [tf.shape(z)[0], -1, 4])
    delta = tf.concat([z[:, 1:] - z[:, :-1], tf.fill([tf.shape(z)[0], 1], 1e2)], 1)
    alpha = 1.0 - tf.exp(-tf.nn.relu(raw[..., 3]) * delta)
    weights = alpha * tf.math.cumprod(1.0 - alpha + 1e-10, -1, exclusive=True)
    colour = tf.reduce_sum(weights[..., None] * tf.sigmoid(raw[..., :3]), 1)
    return colour, weights, tf.reduce_sum(weights * z, 1)


@tf.function(reduce_retracing=True)
def train(origins, directions, colours, u):
    z = tf.broadcast_to(tf.linspace(1.0, 4.0, 24)[None], [tf.shape(origins)[0], 24])
    with tf.GradientTape() as tape:
        coarse, weights, _ = render(origins, directions, z)
        pdf = tf.stop_gradient(weights) + 1e-5
        cdf = tf.cumsum(pdf / tf.reduce_sum(pdf, 1, keepdims=True), 1)
        at = tf.searchsorted(cdf, u, side="right")
        fine = tf.gather(z, tf.minimum(at, 23), batch_dims=1)
        both = tf.sort(tf.concat([z, fine], 1), 1)
        final, _, depth = render(origins, directions, both)
        loss = tf.reduce_mean((coarse - colours) ** 2) + tf.reduce_mean((final - colours) ** 2)
        psnr = -10.0 * tf.math.log(loss) / tf.math.log(10.0)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss, psnr, tf.reduce_mean(depth)


numbers = np.random.default_rng(4)
watch.start(model)
for _step in range(60):
    d = numbers.normal(0, 1, (64, 3))
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    o = numbers.normal(0, 0.1, (64, 3))
    c = 0.5 + 0.5 * d
    u = np.sort(numbers.random((64, 12)), 1)
    loss, psnr, depth = train(*(tf.constant(a.astype("float32")) for a in (o, d, c, u)))
    watch.step(model, optimizer, loss=loss, psnr=psnr, depth=depth)
print(f"{float(loss):.3f}")
