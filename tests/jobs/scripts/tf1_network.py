"""The TF1 network that tf1_session.py and tf1_ref.py train, with either kind of variable."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

v1 = tf.compat.v1
BATCH, FEATURES, WIDTH, BLOCKS, CLASSES = 2048, 128, 512, 2, 10


def weight(name: str, value: np.ndarray, dtype: str, resource: bool) -> tf.Variable:
    initial = np.asarray(value, "float32").astype(dtype)
    return v1.get_variable(name, initializer=initial, use_resource=resource)


def block(
    x: tf.Tensor, name: str, random: np.random.Generator, dtype: str, resource: bool
) -> tf.Tensor:
    gamma = weight(f"{name}_gamma", np.ones(WIDTH), dtype, resource)
    beta = weight(f"{name}_beta", np.zeros(WIDTH), dtype, resource)
    scaled = random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    kernel = weight(f"{name}_kernel", scaled, dtype, resource)
    bias = weight(f"{name}_bias", np.zeros(WIDTH), dtype, resource)
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)
    return x + tf.nn.gelu(tf.nn.bias_add(tf.matmul(y, kernel), bias))


def network(x: tf.Tensor, y: tf.Tensor, dtype: str, resource: bool) -> tf.Tensor:
    random = np.random.default_rng(recording.SEED)
    scaled = random.standard_normal((FEATURES, WIDTH)) / np.sqrt(FEATURES)
    h = tf.matmul(x, weight("first", scaled, dtype, resource))
    for position in range(BLOCKS):
        h = block(h, f"block{position}", random, dtype, resource)
    scaled = random.standard_normal((WIDTH, CLASSES)) / np.sqrt(WIDTH)
    logits = tf.matmul(h, weight("last", scaled, dtype, resource))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def make_optimizer(name: str) -> tuple[v1.train.Optimizer, dict[str, float]]:
    """The optimizer and what `recording.update_rule` tells of a Keras one."""
    if name != "adam":
        return v1.train.MomentumOptimizer(1e-2, 0.9), {}
    rate, beta_1, beta_2, epsilon = 1e-3, 0.9, 0.999, 1e-8
    stored = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    rule = {key: float(np.float32(value)) for key, value in stored.items()}
    rule["scale"] = recording.first_scale(rate, beta_1, beta_2)
    return v1.train.AdamOptimizer(rate, beta_1, beta_2, epsilon), rule


def train(description: str, resource: bool) -> None:
    """Train in a Session; gradients are fetched along with the loss."""
    options = recording.arguments(description)
    v1.disable_v2_behavior()
    recorder = recording.Recorder(options.out)
    x = v1.placeholder(options.dtype, (BATCH, FEATURES))
    y = v1.placeholder("int32", (BATCH,))
    loss = network(x, y, options.dtype, resource)
    weights = v1.trainable_variables()
    optimizer, rule = make_optimizer(options.optimizer)
    pairs = optimizer.compute_gradients(loss, weights)
    update = optimizer.apply_gradients(pairs)
    slots = [v for v in v1.global_variables() if v not in weights]
    random = np.random.default_rng(recording.SEED + 1)
    features = random.standard_normal((BATCH, FEATURES)).astype("float32").astype(options.dtype)
    feed = {x: features, y: random.integers(0, CLASSES, BATCH).astype("int32")}
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        if options.checkpoint:
            saved = np.load(options.checkpoint)
            for variable, name in zip(weights, sorted(saved.files), strict=True):
                variable.load(saved[name].astype(options.dtype), session)
        recorder.save("initial.npz", named("weight", weights, session.run(weights)))
        fetches = [loss, [g for g, _ in pairs], update]
        state = session.run(v1.global_variables())
        for _ in range(options.skip):
            session.run(fetches, feed)
            for variable, array in zip(v1.global_variables(), state, strict=True):
                variable.load(array, session)
        for _ in range(options.steps):
            recorder.begin()
            value, gradients, _ = session.run(fetches, feed)
            if recorder.end(float(value)) == 1:
                after = named("variable", weights, session.run(weights))
                after |= named("slot", slots, session.run(slots))
                recorder.save("step1.npz", after | named("gradient", weights, gradients))
    recorder.finish(rule)


def named(kind: str, variables: list, arrays: list) -> dict[str, np.ndarray]:
    pairs = enumerate(zip(variables, arrays, strict=True))
    return {f"{kind}_{i:03d}_{v.op.name.replace('/', '.')}": a for i, (v, a) in pairs}
