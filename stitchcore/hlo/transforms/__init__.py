"""Rewrites of HLO modules: simplification by named rules, composites into primitives."""
