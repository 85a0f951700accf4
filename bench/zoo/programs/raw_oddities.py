"""Rarely met operations, many by `tf.raw_ops`: tridiagonal, LRN, dilation, cumprod, unique, searchsorted."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(71)
filters = tf.Variable(numbers.normal(0, 0.3, (2, 2, 4)).astype("float32"))
mix = tf.Variable(numbers.normal(0, 0.3, (16, 16)).astype("float32"))
shape = tf.Variable(numbers.uniform(1, 3, 16).astype("float32"))
variables = [filters, mix, shape]


@tf.function(input_signature=[tf.TensorSpec([6, 8, 8, 4]), tf.TensorSpec([None], tf.int32)])
def train(images, ids):
    with tf.GradientTape() as tape:
        x = tf.raw_ops.LRN(input=images, depth_radius=2, bias=1.0, alpha=0.1, beta=0.6)
        x = tf.nn.dilation2d(x, filters, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])
        x = tf.raw_ops.SpaceToDepth(input=x, block_size=2)
        x = tf.raw_ops.MirrorPad(
            input=x, paddings=[[0, 0], [1, 1], [1, 1], [0, 0]], mode="SYMMETRIC"
        )
        x = tf.nn.fractional_max_pool(x, [1.0, 1.5, 1.5, 1.0], seed=3)[0]
        x = tf.einsum("bhwc,cd->bhwd", x, mix)
        x = tf.math.softsign(x) + tf.math.xlogy(tf.abs(x), tf.abs(x) + 0.5)
        x = tf.raw_ops.Cumprod(x=0.9 + 0.1 * tf.tanh(x), axis=1, exclusive=True, reverse=True)
        row = tf.reduce_mean(x, [1, 2])
        band = tf.linalg.band_part(tf.einsum("bi,bj->bij", row, row), 1, 2)
        band = tf.linalg.set_diag(band, 3.0 + tf.abs(row))
        solved = tf.linalg.solve(band, row[..., None])[..., 0]
        gamma = tf.math.lgamma(tf.nn.softplus(shape)) + tf.math.digamma(1.0 + tf.abs(shape))
        angle = tf.math.atan2(solved, 1.0 + row * row) + tf.math.erfc(row) * tf.math.expm1(
            -tf.abs(row)
        )
        chosen, positions = tf.unique(ids)
        table = tf.gather(angle, chosen % 6)
        back = tf.gather(table, positions)
        parts = tf.dynamic_partition(back, tf.cast(ids > 8, tf.int32), 2)
        order = tf.dynamic_partition(tf.range(tf.size(ids)), tf.cast(ids > 8, tf.int32), 2)
        stitched = tf.dynamic_stitch(
            order, [parts[0] * 2.0, tf.math.rint(parts[1] * 64) / 64 + parts[1]]
        )
        loss = tf.reduce_mean(tf.square(stitched + gamma)) + tf.reduce_mean(tf.math.bessel_i0e(row))
        loss += 0.01 * tf.linalg.logdet(tf.matmul(mix, mix, transpose_b=True) + 2.0 * tf.eye(16))
    for v, g in zip(variables, tape.gradient(loss, variables)):
        v.assign_sub(0.05 * tf.clip_by_norm(g, 1.0))
    bins = tf.searchsorted([-0.5, 0.0, 0.5], tf.reshape(row, [-1]), side="right")
    histogram = tf.math.bincount(bins, minlength=4, maxlength=4)
    inverse = tf.math.invert_permutation(tf.argsort(tf.reduce_sum(row, 1), stable=True))
    bands = tf.raw_ops.Bucketize(input=tf.reduce_sum(images, 3), boundaries=[-1.0, 0.0, 1.0])
    finite, _ = (
        tf.nn.in_top_k([0, 1, 2, 3, 4, 5], row, 5),
        tf.histogram_fixed_width(row, [-1.0, 1.0], 8),
    )
    return loss, histogram, inverse, tf.math.zero_fraction(bands), finite


watch.start(variables)
for step in range(80):
    images = tf.constant(numbers.normal(size=(6, 8, 8, 4)), tf.float32)
    ids = tf.constant(numbers.integers(0, 17, 20 + step % 4), tf.int32)
    loss, histogram, inverse, zeros, finite = train(images, ids)
    watch.step(
        variables, loss=loss, histogram=histogram, inverse=inverse, zeros=zeros, finite=finite
    )
    if step % 20 == 19:
        print("step", step, f"{float(loss):.4f}")
