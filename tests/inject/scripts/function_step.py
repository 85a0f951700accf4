"""A user's program: tf.function step, hand-written Adam. STEPS [PAUSE_SECONDS [RAISE_AT]]"""

import sys
import time

import adam_network
import tensorflow as tf
from adam_network import random

train_step = tf.function(adam_network.train_step)

x, y = random.randn(640, 64).astype("f"), random.randint(0, 10, 640)
steps, pause = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
raise_at = int(sys.argv[3]) if len(sys.argv) > 3 else -1
for i in range(steps):
    if i == raise_at:
        raise RuntimeError("a mistake of the user's own")
    k = (i % 20) * 32
    print(
        f"{float(train_step(tf.constant(x[k : k + 32]), tf.constant(y[k : k + 32])))!r}", flush=True
    )
    time.sleep(pause)
