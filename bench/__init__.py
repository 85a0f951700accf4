"""Measurements of this project against TensorFlow, XLA and hand-written kernels."""
