"""A step over several large variables, one chain after the other, on a GPU with little memory
(FAKE_GPU_MEMORY_MB).

    tight.py OUT [STEPS]

OUT gets the losses and the allocator's peak.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(1)  # the peak differs less from run to run
OUT = Path(sys.argv[1])
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 60
TABLES, ROWS, COLUMNS = 6, 1 << 14, 16

rng = np.random.default_rng(0)
start = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
tables = [tf.Variable(start) for _ in range(TABLES)]
moments = [tf.Variable(tf.zeros_like(start)) for _ in range(TABLES)]


@tf.function
def step(scale):
    loss = 0.0
    for table, moment in zip(tables, moments, strict=True):
        gradient = tf.tanh(table * scale) * 0.1 + table * 1e-3
        moved = moment * 0.9 + gradient * tf.math.rsqrt(tf.square(gradient) + 1e-3)
        moment.assign(moved)
        table.assign_sub(0.01 * moved)
        loss += tf.reduce_mean(tf.square(table))
    return loss


losses = [float(step(tf.constant(1.0 + number / STEPS))) for number in range(STEPS)]
peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
OUT.write_text(json.dumps({"losses": losses, "peak": peak}))
