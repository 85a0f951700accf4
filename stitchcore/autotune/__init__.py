"""Measurement overrules estimates: kernels, cuts of regions, and the cost model's coefficients."""
