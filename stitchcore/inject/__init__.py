"""The job side: rides inside a training job, swaps stitched kernels in, and must never hurt.

Standard library and the job's own TensorFlow only; Python 3.9 and later. Nothing here imports the
rest of stitchcore (docs/contracts.md section 1).
"""
