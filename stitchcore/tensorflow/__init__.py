"""TensorFlow graphs in: regions cut, lowered to HLO, and patched back. Only here is it imported."""
