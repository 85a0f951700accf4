"""What it takes of a core to watch a process's memory: `python -m bench.memory_samples [SECONDS]`.

The plug-in's sampler runs as it does between a swap and its verdict, in a call that goes on and on;
the share is the kernel's own account of its thread. It belongs into docs/architecture.md, and into
stitchcore/inject/native/memory.cc.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from stitchcore.inject import build, plugin


def main(seconds: float) -> None:
    import tensorflow as tf

    assert tf  # the plug-in needs its library
    library = plugin.Plugin(plugin.open_native(str(build.library_folder())))
    step = library.new_step()
    library.schedule(step, 0, 3, 3)
    assert library.watch_memory(step)
    for _ in range(2):  # of the first call of a block nothing is kept
        library.pass_step(step, library.step_arm(step)[0])
    time.sleep(0.5)  # its thread has begun, and has its name
    [task] = (
        one
        for one in Path("/proc/self/task").iterdir()
        if (one / "comm").read_text() == "stitch-memory\n"
    )

    def ran() -> float:
        return int((task / "schedstat").read_text().split()[0]) / 1e9

    began, before = time.perf_counter(), ran()
    time.sleep(seconds)
    used, passed = ran() - before, time.perf_counter() - began
    samples = sum(one.samples for one in library.memory(step))
    print(f"{used / passed:.2%} of a core: {samples / passed:.0f} samples a second, "
          f"{used / samples * 1e6:.0f} µs each")  # fmt: skip


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
