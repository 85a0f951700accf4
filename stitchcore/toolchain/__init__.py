"""Source text to binaries that run: compilers, NVRTC, and the CPU runtime of tests and benches."""
