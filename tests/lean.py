"""The environment of jobs and services in tests: without libraries that they never use.

TensorFlow imports jax, matplotlib and pandas where they are installed, and the test environment has
them for benchmarks: a third of the time that `import tensorflow` takes, in some two hundred jobs.
`kubernetes` imports kubernetes_validate, which imports what validates JSON and makes the grammar of
RFC 3987 on its way: four fifths of the time that a webhook takes to start. A usual job's image has
none of them, and the images of the service neither.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ABSENT = ROOT / "tests" / "absent"
SOURCES = [str(ROOT / part) for part in (".", "operator", "worker", "tests/absent")]
"""Where processes of the service, which tests start, find what they import."""


def environment(**extra: str) -> dict[str, str]:
    """This process's variables but for ours, quiet TensorFlow, then `extra`; what hides the unused
    libraries comes last on PYTHONPATH."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STITCH_", "PYTHONPATH"))}
    path = os.pathsep.join(filter(None, (extra.pop("PYTHONPATH", ""), str(ABSENT))))
    return {**clean, "TF_CPP_MIN_LOG_LEVEL": "3", **extra, "PYTHONPATH": path}
