"""REINFORCE on a corridor of ten cells: episodes in numpy, tiny graphs, rewards to go."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(16)
numbers = np.random.default_rng(16)
policy = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(2)]
)
optimizer = keras.optimizers.Adam(0.02)
optimizer.build(policy.trainable_variables)


@tf.function(input_signature=[tf.TensorSpec([1, 10])])
def act(state):
    return tf.nn.softmax(policy(state))


@tf.function(reduce_retracing=True)
def learn(states, actions, returns):
    with tf.GradientTape() as tape:
        logits = policy(states)
        chosen = -tf.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)
        spread = tf.reduce_mean(
            tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits), -1)
        )
        loss = -tf.reduce_mean(chosen * returns) + 0.01 * spread
    gradients = tape.gradient(loss, policy.trainable_variables)
    optimizer.apply_gradients(zip(gradients, policy.trainable_variables))
    return loss


watch.start(policy)
for episode in range(12):
    cell, states, actions, rewards = 4, [], [], []
    while 0 < cell < 9 and len(states) < 20:
        state = np.eye(10, dtype="float32")[cell]
        action = int(numbers.random() < float(act(tf.constant(state[None]))[0, 1]))
        states, actions = [*states, state], [*actions, action]
        cell += 2 * action - 1
        rewards.append(1.0 if cell == 9 else -0.05)
    returns = np.cumsum(rewards[::-1])[::-1].astype("float32")
    loss = learn(tf.constant(np.array(states)), tf.constant(actions), tf.constant(returns))
    watch.step(policy, optimizer, loss=loss)
    print("episode", episode, len(states), f"{float(loss):.5f}")
