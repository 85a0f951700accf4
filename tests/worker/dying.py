"""A worker that dies, with its pool, when it is told of a stage: `dying.py STAGE OPTIONS...`"""

from __future__ import annotations

import os
import signal
import sys

from stitch_worker.__main__ import main

STAGE, *OPTIONS = sys.argv[1:]


def die(event: str, key: str) -> None:
    """As a machine that goes away."""
    del key
    if event == STAGE:
        os.killpg(os.getsid(0), signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(OPTIONS, die))
