"""Eight memory-intensive subgraphs of training steps: TF, XLA, hand-written, generated."""
