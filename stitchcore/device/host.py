"""What this machine's processor is: its instruction-set level, caches and cores.

Levels are those of the x86-64 psABI. Read from /proc and /sys; the root is an argument for tests.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Reason, Refused

_V2 = frozenset("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3".split())
_V3 = _V2 | frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave".split())
_V4 = _V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("cpu-x86-64-v4", _V4),
    ("cpu-x86-64-v3", _V3),
    ("cpu-x86-64-v2", _V2),
)
"""Device records' targets and the processor flags (as Linux names them) each needs, best first."""


@dataclass(frozen=True)
class Host:
    """This machine. Cache sizes in bytes (0: unknown), `cores` the process may run on."""

    model: str
    target: str
    cores: int
    level1_bytes: int
    level2_bytes: int
    level3_bytes: int


def target_of(flags: frozenset[str]) -> str:
    """The best target whose instructions `flags` cover. Raises Refused(WRONG_TARGET) below v2."""
    for target, needed in LEVELS:
        if needed <= flags:
            return target
    missing = ", ".join(sorted(_V2 - flags))
    raise Refused("processor", Reason.WRONG_TARGET, f"x86-64-v2 needs {missing}")


def host(root: Path = Path("/")) -> Host:
    """This machine. Raises Refused(WRONG_TARGET) for a processor below x86-64-v2."""
    text = (root / "proc/cpuinfo").read_text()
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    sizes = _caches(root / "sys/devices/system/cpu/cpu0/cache")
    return Host(
        model[1] if model else "unknown",
        target_of(frozenset(flags[1].split() if flags else ())),
        len(os.sched_getaffinity(0)),
        sizes.get(1, 0),
        sizes.get(2, 0),
        sizes.get(3, 0),
    )


def host_device() -> Device:
    """The device record of this machine's level."""
    return DEVICES[host().target]


def _caches(folder: Path) -> dict[int, int]:
    """Data cache bytes by level."""
    bytes_of: dict[int, int] = {}
    for entry in sorted(folder.glob("index*")):
        try:
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            size = (entry / "size").read_text().strip()
            bytes_of[int((entry / "level").read_text())] = _bytes(size)
        except (OSError, ValueError):
            continue
    return bytes_of


def _bytes(size: str) -> int:
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:], 1)
    return int(size.rstrip("KMG")) * unit
