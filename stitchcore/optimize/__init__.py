"""A request of a job becomes an artifact: partition, lower, build, verify, measure, patch."""
