"""Artifacts: what a worker publishes and a job loads. Immutable, content-addressed, signed."""
