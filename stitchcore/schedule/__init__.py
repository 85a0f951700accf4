"""Pattern to Kernel: axes, dominants and schemes, mapping, storage, barriers, lowering."""
