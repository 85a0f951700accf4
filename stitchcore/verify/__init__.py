"""Verification: kernels are judged against float64, and timed beside what they replace."""
