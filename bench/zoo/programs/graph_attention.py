"""Graph attention: segment softmax, unsorted segment sums over edges, dropout, masked loss and Adamax."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(41)
NODES, EDGES = 300, 1500


class Attention(keras.layers.Layer):
    def __init__(self, units, heads):
        super().__init__()
        self.units, self.heads = units, heads

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[0][-1], self.heads * self.units))
        self.a = self.add_weight(shape=(2, self.heads, self.units))

    def call(self, inputs, training=None):
        x, edges = inputs
        h = tf.reshape(tf.matmul(x, self.w), [-1, self.heads, self.units])
        source, target = edges[:, 0], edges[:, 1]
        score = tf.reduce_sum(
            tf.gather(h, source) * self.a[0] + tf.gather(h, target) * self.a[1], -1
        )
        score = tf.nn.leaky_relu(score, 0.2)
        top = tf.math.unsorted_segment_max(score, target, NODES)
        e = tf.exp(score - tf.gather(top, target))
        total = tf.math.unsorted_segment_sum(e, target, NODES)
        alpha = e / tf.gather(total, target)
        out = tf.math.unsorted_segment_sum(alpha[..., None] * tf.gather(h, source), target, NODES)
        return tf.nn.elu(tf.reshape(out, [-1, self.heads * self.units]))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.two = Attention(16, 4), Attention(16, 2)
        self.drop = keras.layers.Dropout(0.2, seed=1)
        self.head = keras.layers.Dense(5)

    def call(self, inputs, training=None):
        x, edges = inputs
        x = self.drop(self.one([x, edges]), training=training)
        return self.head(tf.math.l2_normalize(self.two([x, edges]), -1))


model = Net()
optimizer = keras.optimizers.Adamax(5e-3)
numbers = np.random.default_rng(7)
labels = numbers.integers(0, 5, NODES)


def graph():
    x = (numbers.normal(0, 1, (NODES, 24)) + labels[:, None] * 0.3).astype("float32")
    edges = np.stack([numbers.integers(0, NODES, EDGES), numbers.integers(0, NODES, EDGES)], 1)
    edges = np.concatenate([edges, np.stack([np.arange(NODES)] * 2, 1)]).astype("int32")
    return tf.constant(x), tf.constant(edges)


@tf.function
def train(x, edges, y, w):
    with tf.GradientTape() as tape:
        logits = model([x, edges], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_sum(w * losses) / tf.reduce_sum(w)
        loss += 5e-4 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


model(graph())
watch.start(model)
for _step in range(50):
    weight = (numbers.random(NODES) < 0.3).astype("float32")
    loss = train(*graph(), tf.constant(labels.astype("int32")), tf.constant(weight))
    watch.step(model, optimizer, loss=loss)
print(f"{float(loss):.3f}")
