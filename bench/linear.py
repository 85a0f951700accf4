"""Microseconds an instruction of long chains: `python -m bench.linear`.

What grows with the length of a module more than its instructions do (tests/hlo count calls, and see
no copying within one).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial

from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from stitchcore.hlo.transforms.simplify import simplify
from tests.hlo import test_parser, test_simplify

LENGTHS = (2_000, 8_000, 32_000)


def least(work: Callable[[], object], length: int) -> float:
    """Of three runs, processor time."""
    taken = []
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return 1e6 * min(taken) / length


def main() -> None:
    gc.disable()
    for length in LENGTHS:
        text, module = test_parser.chain(length), test_simplify.chain(length)
        works = {
            "parse": partial(parse, text),
            "print": partial(print_module, parse(text)),
            "simplify": partial(simplify, module),
        }
        told = (f"{name} {least(work, length):.0f} µs" for name, work in works.items())
        print(f"{length} instructions, each: {', '.join(told)}")


if __name__ == "__main__":
    main()
