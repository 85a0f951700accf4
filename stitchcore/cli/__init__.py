"""The commands of `stitch`, one module each, over one-screen helpers in `common`."""
