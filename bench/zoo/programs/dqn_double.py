"""Double dueling DQN: target network, n-step returns by scan, Huber, prioritized weights, actions chosen by a small function."""

import numpy as np
import tensorflow as tf
import watch

tf.keras.utils.set_random_seed(4)
L = tf.keras.layers


def network():
    s = tf.keras.Input((12,))
    h = L.Dense(64, "relu")(s)
    h = L.LayerNormalization()(L.Dense(64, "relu")(h))
    v, a = L.Dense(1)(h), L.Dense(5)(h)
    return tf.keras.Model(
        s,
        v + a - tf.keras.ops.mean(a, axis=1, keepdims=True)
        if hasattr(tf.keras, "ops")
        else v + a - tf.reduce_mean(a, 1, keepdims=True),
    )


online, target = network(), network()
target.set_weights(online.get_weights())
optimizer = tf.keras.optimizers.Adam(1e-3, clipvalue=1.0, amsgrad=True)


@tf.function
def act(s, coin, other):
    q = online(s[None])
    return tf.where(coin < 0.1, other, tf.argmax(q, 1, tf.int32)[0])


@tf.function
def learn(s, a, r, s2, done, w):
    returns = tf.scan(
        lambda acc, x: x[0] + 0.97 * (1 - x[1]) * acc,
        (tf.reverse(r, [0]), tf.reverse(done, [0])),
        tf.zeros_like(r[0]),
    )[-1]
    best = tf.argmax(online(s2), 1)
    q2 = tf.gather(target(s2), best, batch_dims=1)
    y = tf.stop_gradient(returns + 0.97**3 * (1 - done[-1]) * q2)
    with tf.GradientTape() as tape:
        q = tf.reduce_sum(online(s) * tf.one_hot(a, 5), 1)
        error = y - q
        huber = tf.where(tf.abs(error) < 1, 0.5 * error**2, tf.abs(error) - 0.5)
        loss = tf.reduce_mean(w * huber)
    grads = tape.gradient(loss, online.trainable_variables)
    optimizer.apply_gradients(zip(grads, online.trainable_variables))
    for t, o in zip(target.variables, online.variables):
        t.assign(0.99 * t + 0.01 * o)
    return loss, tf.abs(error) ** 0.6


numbers = np.random.default_rng(15)
watch.start(online)
for _step in range(80):
    state = numbers.normal(0, 1, 12).astype("float32")
    chosen = [
        int(
            act(
                tf.constant(state),
                tf.constant(np.float32(numbers.random())),
                tf.constant(int(numbers.integers(5)), tf.int32),
            )
        )
        for _ in range(3)
    ]
    s = numbers.normal(0, 1, (32, 12)).astype("float32")
    loss, priority = learn(
        tf.constant(s),
        tf.constant(numbers.integers(0, 5, 32).astype("int32")),
        tf.constant(numbers.normal(0, 1, (3, 32)).astype("float32")),
        tf.constant(s * 0.9 + 0.1),
        tf.constant((numbers.random((3, 32)) < 0.1).astype("float32")),
        tf.constant(numbers.random(32).astype("float32")),
    )
    watch.step(online, optimizer, loss=loss, priority=priority)
print(f"{float(loss):.3f}")
