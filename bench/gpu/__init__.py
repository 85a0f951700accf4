"""Whole workload modules on a GPU: ours against XLA, Inductor, and one kernel per instruction."""
