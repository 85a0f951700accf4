"""A worker whose compile children run a program of the test's: `hunted.py FOLDER OPTIONS...`"""

from __future__ import annotations

import sys

from stitch_worker import children
from stitch_worker.__main__ import main

SOURCES, *OPTIONS = sys.argv[1:]

if __name__ == "__main__":
    children.SOURCES = (SOURCES,)
    raise SystemExit(main(OPTIONS))
