"""The loop IR: what a kernel does, without saying on which machine."""
