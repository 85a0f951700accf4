"""Stands before an installed jax on a test job's path: see tests/lean.py."""

raise ImportError("no jax here: tests/absent hides it from the jobs of tests")
