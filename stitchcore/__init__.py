"""stitchcore: stitches memory-intensive operators of deep-learning steps into large kernels.

The package is the compiler and the job side; it is usable alone, with no Kubernetes and no broker.
"""

__version__ = "0.1.0"
