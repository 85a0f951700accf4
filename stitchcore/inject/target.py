"""The job's compilation target: the instruction-set level of this machine's CPU, or "sm_90"."""

from __future__ import annotations

from typing import FrozenSet

# Flags of /proc/cpuinfo that each x86-64 level adds (System V ABI supplement).
LEVELS = (
    ("cpu-x86-64-v2", frozenset("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3".split())),
    ("cpu-x86-64-v3", frozenset("avx avx2 bmi1 bmi2 f16c fma movbe".split())),
    ("cpu-x86-64-v4", frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())),
)


def cpu_flags(path: str = "/proc/cpuinfo") -> FrozenSet[str]:
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def detect(flags: FrozenSet[str]) -> str:
    """The highest level whose flags, and those of the levels below, are all there; or ""."""
    found = ""
    for name, needed in LEVELS:
        if not needed <= flags:
            break
        found = name
    return found


def runs_on(artifact_target: str, job_target: str) -> bool:
    """True when code for `artifact_target` runs on a machine of `job_target`. A GPU runs what was
    compiled for its major number and no higher minor one."""
    if artifact_target.startswith("sm_") and job_target.startswith("sm_"):
        made, has = artifact_target[3:], job_target[3:]
        return made.isdigit() and has.isdigit() and made[:-1] == has[:-1] and made <= has
    order = [name for name, _ in LEVELS]
    if artifact_target not in order or job_target not in order:
        return False
    return order.index(artifact_target) <= order.index(job_target)
