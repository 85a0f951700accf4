"""Commands of `stitch` that need the `operator` extra: serve, status."""
