"""The environment of training jobs in tests: without libraries that they never use.

TensorFlow imports jax, matplotlib and pandas where they are installed, and the test environment has
them for benchmarks: a third of the time that `import tensorflow` takes, in some two hundred jobs.
A usual job's image has none of them.
"""

from __future__ import annotations

import os
from pathlib import Path

ABSENT = Path(__file__).resolve().parent / "absent"


def environment(**extra: str) -> dict[str, str]:
    """This process's variables but for ours, quiet TensorFlow, then `extra`; what hides the unused
    libraries comes last on PYTHONPATH."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STITCH_", "PYTHONPATH"))}
    path = os.pathsep.join(filter(None, (extra.pop("PYTHONPATH", ""), str(ABSENT))))
    return {**clean, "TF_CPP_MIN_LOG_LEVEL": "3", **extra, "PYTHONPATH": path}
