"""Whole-module runs on a GPU: what no kernel holds, by libraries and by numpy on the host."""
