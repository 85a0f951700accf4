"""What gateway and workers share: names of queues, errors at start-up."""
