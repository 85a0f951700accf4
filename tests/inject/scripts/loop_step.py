"""A user's program: ten training steps in a tf.while loop per call. CALLS [PAUSE_SECONDS]"""

import sys
import time

import tensorflow as tf
from adam_network import random, train_step


@tf.function
def train_steps(x, y):
    loss = tf.constant(0.0)
    for i in tf.range(10):
        loss = train_step(x[i], y[i])
    return loss


x = tf.constant(random.randn(10, 32, 64).astype("f"))
y = tf.constant(random.randint(0, 10, (10, 32)))
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
for _ in range(int(sys.argv[1])):
    print(f"{float(train_steps(x, y))!r}", flush=True)
    time.sleep(pause)
