"""Stands before an installed matplotlib on a test job's path: see tests/lean.py."""

raise ImportError("no matplotlib here: tests/absent hides it from the jobs of tests")
