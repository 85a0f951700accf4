"""One module: HLO, plan, kernels, sources, binaries; the runner of every pipeline."""
