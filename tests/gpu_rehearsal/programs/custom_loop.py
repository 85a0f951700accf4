"""Training steps written out: two layers, a layer normalisation, cross entropy; SGD or Adam.

    custom_loop.py OUT [--optimizer sgd|adam] [--steps N] [--every N] [--device /GPU:0]

OUT gets the loss of every Nth step and the variables' norms. Where few losses are read the host
runs ahead of the device.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH, FEATURES, WIDTH, CLASSES = 64, 32, 128, 10


class Model:
    def __init__(self, optimizer):
        rng = np.random.default_rng(0)

        def normal(*dims):
            return (rng.standard_normal(dims) * 0.1).astype(np.float32)

        zeros, ones = np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32)
        start = [normal(FEATURES, WIDTH), zeros, ones, zeros]
        start += [normal(WIDTH, CLASSES), np.zeros(CLASSES, np.float32)]
        self.variables = [tf.Variable(one) for one in start]
        self.adam = optimizer == "adam"
        if self.adam:
            self.slots = [[tf.Variable(np.zeros_like(one)) for one in start] for _ in range(2)]
            self.powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def loss(self, x, labels):
        w1, b1, gain, shift, w2, b2 = self.variables
        hidden = tf.matmul(x, w1) + b1
        mean = tf.reduce_mean(hidden, axis=1, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(hidden, mean), axis=1, keepdims=True)
        hidden = (hidden - mean) * tf.math.rsqrt(variance + 1e-5) * gain + shift
        hidden = tf.nn.relu(hidden) + 0.1 * tf.tanh(hidden)
        logits = tf.matmul(hidden, w2) + b2
        shifted = logits - tf.stop_gradient(tf.reduce_max(logits, axis=1, keepdims=True))
        log_sum = tf.math.log(tf.reduce_sum(tf.exp(shifted), axis=1))
        picked = tf.reduce_sum(shifted * tf.one_hot(labels, CLASSES), axis=1)
        return tf.reduce_mean(log_sum - picked)

    @tf.function
    def step(self, x, labels):
        with tf.GradientTape() as tape:
            loss = self.loss(x, labels)
        for i, grad in enumerate(tape.gradient(loss, self.variables)):
            handle = self.variables[i].handle
            if not self.adam:
                tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=0.05, delta=grad)
                continue
            first, second = (slots[i].handle for slots in self.slots)
            powers = [power.read_value() for power in self.powers]
            tf.raw_ops.ResourceApplyAdam(
                var=handle, m=first, v=second, beta1_power=powers[0], beta2_power=powers[1],
                lr=0.001, beta1=0.9, beta2=0.999, epsilon=1e-7, grad=grad,
            )  # fmt: skip
        if self.adam:
            self.powers[0].assign(self.powers[0] * 0.9)
            self.powers[1].assign(self.powers[1] * 0.999)
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--device", default="/GPU:0")
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    x = rng.standard_normal((BATCH, FEATURES)).astype(np.float32)
    labels = (np.abs(x).sum(1) * 3).astype(np.int64) % CLASSES
    with tf.device(given.device):
        model = Model(given.optimizer)
        x, labels = tf.identity(x), tf.identity(labels)
        losses = []
        for number in range(given.steps):
            loss = model.step(x, labels)
            if number % given.every == given.every - 1:
                losses.append(float(loss))
    norms = [float(np.linalg.norm(one.numpy())) for one in model.variables]
    given.out.write_text(json.dumps({"losses": losses, "norms": norms, "device": loss.device}))


main()
