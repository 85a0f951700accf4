"""Stands before an installed pandas on a test job's path: see tests/lean.py."""

raise ImportError("no pandas here: tests/absent hides it from the jobs of tests")
