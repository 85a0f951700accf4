"""A decoder with rotary embeddings, grouped queries, RMS norm, SwiGLU, a key-value cache for generation."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(33)
V, D, H, K, T = 97, 64, 8, 2, 32


def weight(*shape):
    return tf.Variable(
        (numbers.normal(0, 0.02, shape) * np.sqrt(64 / shape[0]) * 3).astype("float32")
    )


table = weight(V, D)
layers = [
    {
        "n1": tf.Variable(tf.ones(D)),
        "q": weight(D, D),
        "k": weight(D, K * D // H),
        "v": weight(D, K * D // H),
        "o": weight(D, D),
        "n2": tf.Variable(tf.ones(D)),
        "up": weight(D, 160),
        "gate": weight(D, 160),
        "down": weight(160, D),
    }
    for _ in range(2)
]
final = tf.Variable(tf.ones(D))
variables = [table, final] + [v for layer in layers for v in layer.values()]
first = [tf.Variable(tf.zeros_like(v)) for v in variables]
second = [tf.Variable(tf.zeros_like(v)) for v in variables]
count = tf.Variable(0.0)


def rms(x, g):
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-6) * g


def rotate(x, position):
    half = x.shape[-1] // 2
    angle = tf.cast(position, tf.float32)[:, None] * (
        10000.0 ** (-tf.range(half, dtype=tf.float32) / half)
    )
    s, c = tf.sin(angle)[:, None], tf.cos(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return tf.concat([a * c - b * s, b * c + a * s], -1)


def attend(q, k, v, mask):
    k, v = tf.repeat(k, H // K, 2), tf.repeat(v, H // K, 2)
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / (D // H) ** 0.5
    scores = tf.where(mask, scores, -1e9)
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)


def block(x, layer, position, mask, cache=None):
    h = rms(x, layer["n1"])
    b, t = tf.shape(x)[0], tf.shape(x)[1]
    q = rotate(tf.reshape(h @ layer["q"], [b, t, H, D // H]), position)
    k = rotate(tf.reshape(h @ layer["k"], [b, t, K, D // H]), position)
    v = tf.reshape(h @ layer["v"], [b, t, K, D // H])
    if cache is not None:
        k, v = tf.concat([cache[0], k], 1), tf.concat([cache[1], v], 1)
    x = x + tf.reshape(attend(q, k, v, mask), [b, t, D]) @ layer["o"]
    h = rms(x, layer["n2"])
    return x + (tf.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"], (k, v)


@tf.function
def train(tokens):
    with tf.GradientTape() as tape:
        x = tf.gather(table, tokens[:, :-1]) * D**0.5
        mask = tf.linalg.band_part(tf.ones([T, T], tf.bool), -1, 0)
        for layer in layers:
            x, _ = block(x, layer, tf.range(T), mask)
        logits = tf.matmul(rms(x, final), table, transpose_b=True)
        logits = 30.0 * tf.tanh(logits / 30.0)
        ce = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, 1:], logits)
        z = tf.reduce_logsumexp(logits, -1)
        loss = tf.reduce_mean(ce) + 1e-4 * tf.reduce_mean(z * z)
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
    gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
    count.assign_add(1.0)
    rate = 3e-3 * tf.minimum(count / 10.0, 1.0)
    for v, m, s, g in zip(variables, first, second, gradients):
        m.assign(0.9 * m + 0.1 * g)
        s.assign(0.95 * s + 0.05 * g * g)
        v.assign_sub(
            rate * (m / (1 - 0.9**count) / (tf.sqrt(s / (1 - 0.95**count)) + 1e-8) + 0.1 * v)
        )
    return loss, norm


@tf.function(
    input_signature=[
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([], tf.int32),
        *[tf.TensorSpec([None, None, K, D // H]) for _ in range(4)],
    ]
)
def step_of(token, position, k0, v0, k1, v1):
    x = tf.gather(table, token)[:, None] * D**0.5
    news = []
    for layer, cache in zip(layers, [(k0, v0), (k1, v1)]):
        x, new = block(x, layer, position[None], True, cache)
        news += list(new)
    logits = tf.matmul(rms(x, final)[:, 0], table, transpose_b=True)
    return tf.argmax(logits, 1, tf.int32), logits, news


watch.start(variables)
for _step in range(60):
    start = numbers.integers(0, V, (8, 1))
    tokens = ((start + np.arange(T + 1) * 3) % V).astype("int32")
    loss, norm = train(tf.constant(tokens))
    watch.step(variables, first, second, loss=loss, norm=norm)
empty = [tf.zeros([4, 0, K, D // H])] * 4
token = tf.constant([1, 2, 3, 4])
for position in range(40):
    token, logits, empty = step_of(token, tf.constant(position), *empty)
    watch.step(logits=logits)
print(f"{float(loss):.3f}", token.numpy())
