"""The store as a service: one volume, mounted by one pod, for gateway, workers and signer.

A ReadWriteOnce volume is all that most clusters have, and workers run where GPUs are. So one
process serves the folder over HTTPS, and each of the others may touch only what its part of the
work needs. The other side is `stitchcore/artifact/remote.py`.
"""
