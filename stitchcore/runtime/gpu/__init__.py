"""Whole modules on a GPU, without TensorFlow: for measuring, and for proving what is measured.

Stitched kernels run by the launch library, contractions and other library instructions by a device
library that is handed in, loops and conditionals on the host. Training jobs run kernels through
StitchedFusion instead (inject/).
"""
