"""A classifier whose whole step is memory-intensive meets labels that no class has.

Prints, as JSON: the losses, the errors of the steps with wrong labels, and how far the variables
moved over each of those.
"""

from __future__ import annotations

import failing
import numpy as np
import tensorflow as tf

ROWS, CLASSES, STEPS = 512, 600, 12
WRONG = {5: (-4,), 8: (3, CLASSES + 2, CLASSES)}
"""By step the labels that are put among the right ones."""


def main() -> None:
    random = np.random.default_rng(3)
    features = tf.constant(random.normal(size=(ROWS, CLASSES)).astype("float32"))
    scale = tf.Variable(tf.ones((CLASSES,)), name="scale")
    shift = tf.Variable(tf.zeros((CLASSES,)), name="shift")
    seen = tf.Variable(0.0, name="seen")
    history = tf.Variable(tf.zeros((ROWS,)), name="history")  # updated row by row, with the check
    variables = [scale, shift, seen, history]

    @tf.function
    def step(labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.tanh(features * scale + shift) * 3.0
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(each)
        by_scale, by_shift = tape.gradient(loss, [scale, shift])
        scale.assign_sub(50.0 * by_scale)
        shift.assign_sub(50.0 * by_shift)
        history.assign_add(each)
        with tf.control_dependencies([loss]):
            seen.assign_add(1.0)
        return loss

    given = []
    for number in range(STEPS):
        labels = random.integers(0, CLASSES, ROWS).astype("int32")
        wrong = WRONG.get(number, ())
        labels[100 : 100 + len(wrong)] = wrong
        given.append([labels])
    failing.tell(step, variables, given)


if __name__ == "__main__":
    main()
