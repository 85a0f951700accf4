"""A child process with bounds and without a network, for untrusted graphs."""
