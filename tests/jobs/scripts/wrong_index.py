"""A model whose step looks rows and columns up meets indices that its tables do not have.

It looks up in a variable, in a constant and in what it computes, and sums rows by the groups that
they are of, or of none; some indices come from the input, some the step computes; of some results
only slices are used. Prints, as JSON: the losses, the
errors of the steps with wrong indices, and how far the variables moved over each of those.
"""

from __future__ import annotations

import failing
import numpy as np
import tensorflow as tf

ROWS, COLUMNS, GROUPS, WIDTH, BATCH, LENGTH, STEPS = 3000, 700, 40, 48, 256, 8, 14
WRONG = {
    5: ("ids", (100, 3), -4),
    7: ("ids", (0, 0), ROWS),
    9: ("columns", (17,), COLUMNS + 6),
    10: ("groups", (31,), GROUPS),
    11: ("shifted", (255, 7), 2 * ROWS),
}
"""By step which indices one wrong value is put into, and where."""


def main() -> None:
    random = np.random.default_rng(5)
    table = tf.Variable(random.normal(size=(ROWS, WIDTH)).astype("float32"))
    wide = tf.constant(random.normal(size=(BATCH, COLUMNS)).astype("float32"))
    scale = tf.Variable(tf.ones((WIDTH,)), name="scale")
    shift = tf.Variable(tf.zeros((WIDTH,)), name="shift")
    history = tf.Variable(tf.zeros((BATCH, LENGTH)), name="history")
    variables = [scale, shift, history, table]

    @tf.function
    def step(
        ids: tf.Tensor, shifted: tf.Tensor, columns: tf.Tensor, groups: tf.Tensor
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, ids) * 0.5
            again = tf.gather(tf.tanh(table), tf.where(shifted < 0, shifted + ROWS, shifted))
            picked = tf.gather(wide, columns, axis=1)
            values = tf.tanh(rows * scale + shift) + tf.sigmoid(again * shift)
            sums = tf.math.unsorted_segment_sum(tf.square(values[:, 1]), groups, GROUPS)
            first, last = values[:, 0] * 2.0, values[:, -1] - shift
            loss = tf.reduce_mean(tf.square(first) + tf.square(last) + first * last)
            loss += 0.1 * tf.reduce_mean(tf.square(values)) * tf.reduce_mean(tf.square(picked))
            loss += 0.01 * tf.reduce_mean(tf.sqrt(sums + 1.0) * scale)
        by_scale, by_shift, by_table = tape.gradient(loss, [scale, shift, table])
        table.assign_sub(0.1 * tf.convert_to_tensor(by_table))
        scale.assign_sub(0.5 * by_scale)
        shift.assign_sub(0.5 * by_shift)
        history.assign_add(tf.reduce_mean(values, 2) * loss)
        return loss

    given = []
    for number in range(STEPS):
        arrays = {
            "ids": random.integers(0, ROWS, (BATCH, LENGTH)).astype("int32"),
            "shifted": random.integers(-ROWS, ROWS, (BATCH, LENGTH)).astype("int64"),
            "columns": random.integers(0, COLUMNS, 64).astype("int32"),
            "groups": random.integers(-4, GROUPS, BATCH).astype("int64"),
        }
        if number in WRONG:
            which, place, value = WRONG[number]
            arrays[which][place] = value
        given.append(list(arrays.values()))
    failing.tell(step, variables, given)


if __name__ == "__main__":
    main()
