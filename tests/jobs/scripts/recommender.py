"""A recommender in the manner of DIEN: embedding tables, an unrolled GRU with attention gates."""

from __future__ import annotations

import numpy as np
import recording
import tensorflow as tf

USERS, ITEMS, CATEGORIES, WIDTH, HIDDEN, LENGTH, BATCH = 5000, 10000, 1000, 18, 36, 16, 256


class Dense(tf.Module):
    def __init__(
        self,
        random: np.random.Generator,
        inputs: int,
        outputs: int,
        dtype: str,
        biased: bool = True,
    ) -> None:
        super().__init__()
        kernel = random.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        self.kernel = tf.Variable(kernel.astype("float32").astype(dtype), name="kernel")
        self.bias = tf.Variable(np.zeros(outputs), dtype=dtype, name="bias") if biased else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(x, [-1, x.shape[-1]])
        y = tf.matmul(flat, self.kernel)
        if self.bias is not None:
            y = tf.nn.bias_add(y, self.bias)
        return tf.reshape(y, [*x.shape[:-1], y.shape[-1]])


class Recurrent(tf.Module):
    """A GRU cell whose update gate an attention weight may scale."""

    def __init__(self, random: np.random.Generator, inputs: int, dtype: str) -> None:
        super().__init__()
        self.gates = Dense(random, inputs + HIDDEN, 2 * HIDDEN, dtype)
        self.candidate = Dense(random, inputs + HIDDEN, HIDDEN, dtype)

    def __call__(self, x: tf.Tensor, state: tf.Tensor, attention: tf.Tensor | None) -> tf.Tensor:
        joined = tf.concat([x, state], 1)
        reset, update = tf.split(tf.sigmoid(self.gates(joined)), 2, 1)
        candidate = tf.tanh(self.candidate(tf.concat([x, reset * state], 1)))
        if attention is not None:
            update = (1 - attention) * update
        return update * state + (1 - update) * candidate


class Model(tf.Module):
    def __init__(self, dtype: str) -> None:
        super().__init__()
        random = np.random.default_rng(recording.SEED)

        def table(rows: int, name: str) -> tf.Variable:
            values = 0.1 * random.standard_normal((rows, WIDTH))
            return tf.Variable(values.astype("float32").astype(dtype), name=name)

        self.users, self.items = table(USERS, "users"), table(ITEMS, "items")
        self.categories = table(CATEGORIES, "categories")
        self.interest = Recurrent(random, 2 * WIDTH, dtype)
        self.evolution = Recurrent(random, HIDDEN, dtype)
        self.query = Dense(random, 2 * WIDTH, HIDDEN, dtype)
        self.score = [Dense(random, 4 * HIDDEN, 40, dtype), Dense(random, 40, 1, dtype, False)]
        self.top = [Dense(random, 5 * WIDTH + HIDDEN, 80, dtype), Dense(random, 80, 2, dtype)]
        self.slope = tf.Variable(np.full(80, 0.25), dtype=dtype, name="slope")

    def item(self, items: tf.Tensor, categories: tf.Tensor) -> tf.Tensor:
        pair = [tf.gather(self.items, items), tf.gather(self.categories, categories)]
        return tf.concat(pair, -1)

    def attention(self, target: tf.Tensor, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        query = tf.tile(tf.nn.leaky_relu(self.query(target))[:, None], [1, LENGTH, 1])
        x = tf.concat([query, states, query - states, query * states], -1)
        scores = self.score[1](tf.sigmoid(self.score[0](x)))[:, :, 0]
        return tf.nn.softmax(tf.where(mask > 0, scores, -1e9 * tf.ones_like(scores)))

    def __call__(self, batch: dict[str, tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        target = self.item(batch["item"], batch["category"])
        history = self.item(batch["items"], batch["categories"])
        state = tf.zeros([BATCH, HIDDEN], mask.dtype)
        states = []
        for t in range(LENGTH):
            state = self.interest(history[:, t], state, None)
            states.append(state)
        attention = self.attention(target, tf.stack(states, 1), mask)
        state = tf.zeros([BATCH, HIDDEN], mask.dtype)
        for t in range(LENGTH):
            state = self.evolution(states[t], state, attention[:, t, None])
        user = tf.gather(self.users, batch["user"])
        total = tf.reduce_sum(history * mask[:, :, None], 1)
        z = self.top[0](tf.concat([user, target, total, state], 1))
        z = tf.nn.relu(z) + self.slope * (z - tf.abs(z)) * 0.5
        return self.top[1](z)


def main() -> None:
    options = recording.arguments(__doc__)
    recorder = recording.Recorder(options.out)
    tf.keras.backend.set_floatx(options.dtype)
    model = Model(options.dtype)
    weights = list(model.trainable_variables)
    if options.checkpoint:
        recording.restore(options.checkpoint, weights)
    optimizer = recording.make_optimizer(options.optimizer, 1e-3)
    optimizer.build(weights)
    recorder.save("initial.npz", recording.values("weight", weights))
    random = np.random.default_rng(recording.SEED + 1)

    def draw(high: int, *shape: int) -> tf.Tensor:
        return tf.constant(random.integers(0, high, shape).astype("int32"))

    batch = {"user": draw(USERS, BATCH), "item": draw(ITEMS, BATCH)}
    batch |= {"category": draw(CATEGORIES, BATCH), "items": draw(ITEMS, BATCH, LENGTH)}
    batch |= {"categories": draw(CATEGORIES, BATCH, LENGTH)}
    mask = tf.cast(draw(4, BATCH, LENGTH) > 0, options.dtype)
    labels = draw(2, BATCH)

    @tf.function
    def train_step(batch: dict, mask: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list]:
        with tf.GradientTape() as tape:
            logits = model(batch, mask)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    state = [*weights, *recording.slots(optimizer)]
    recording.take_back(options, state, lambda: train_step(batch, mask, labels))
    for _ in range(options.steps):
        recorder.begin()
        loss, gradients = train_step(batch, mask, labels)
        if recorder.end(float(loss)) == 1:
            after = recording.values("variable", weights)
            after |= recording.values("slot", recording.slots(optimizer))
            recorder.save("step1.npz", after | recording.values("gradient", gradients))
    recorder.finish(recording.update_rule(optimizer))


if __name__ == "__main__":
    main()
