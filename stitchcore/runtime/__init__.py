"""Runs compiled kernels and whole modules from Python: tests, benchmarks and verification."""
