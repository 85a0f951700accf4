"""Settings of the job side: the only reader of its environment variables.

| variable | meaning |
|---|---|
| STITCH_STORE | folder of requests, answers, artifacts and sessions; without it nothing happens |
| STITCH_MODE | off, observe (time and submit, never swap), optimize (default) |
| STITCH_WAIT | seconds to wait for the answer before the first step; 0 (default): swap in later |
| STITCH_SESSION | name of this run's events; made up when absent |
| STITCH_PUBLIC_KEY | 64 hexadecimal digits; two keys may be given with a comma between |
| STITCH_CONTROL | share of steps that keep running the original for comparison (default 0.01) |
| STITCH_PLUGIN | folder of the native files; default beside this module |
"""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass
from typing import Mapping, Tuple

from . import reasons

MODES = ("off", "observe", "optimize")


@dataclass(frozen=True)
class Settings:
    """One process's settings. `wait` in seconds, `control` a share of steps."""

    store: str
    mode: str
    wait: float
    session: str
    public_keys: Tuple[bytes, ...]
    control: float
    native: str


def _number(environment: Mapping[str, str], name: str, default: float, high: float) -> float:
    try:
        value = float(environment.get(name) or default)
    except ValueError as error:
        raise reasons.Refused(reasons.HOOK_ERROR, f"{name} is not a number") from error
    if not 0 <= value <= high:
        raise reasons.Refused(reasons.HOOK_ERROR, f"{name} is not between 0 and {high:g}")
    return value


def read(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables. Raises Refused(HOOK_ERROR) naming a bad one."""
    mode = environment.get("STITCH_MODE") or "optimize"
    if mode not in MODES:
        raise reasons.Refused(reasons.HOOK_ERROR, f"STITCH_MODE is not one of {', '.join(MODES)}")
    keys = []
    for text in filter(None, (environment.get("STITCH_PUBLIC_KEY") or "").split(",")):
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()):
            raise reasons.Refused(reasons.HOOK_ERROR, "STITCH_PUBLIC_KEY is not a key")
        keys.append(bytes.fromhex(text.strip()))
    session = environment.get("STITCH_SESSION") or f"{int(time.time())}-{os.getpid()}"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", session) or session.startswith("."):
        raise reasons.Refused(reasons.HOOK_ERROR, "STITCH_SESSION is not a file name")
    here = os.path.dirname(os.path.abspath(__file__))
    return Settings(
        store=environment.get("STITCH_STORE", ""),
        mode=mode,
        wait=_number(environment, "STITCH_WAIT", 0.0, 86400.0),
        session=session,
        public_keys=tuple(keys),
        control=_number(environment, "STITCH_CONTROL", 0.01, 0.5),
        native=environment.get("STITCH_PLUGIN") or os.path.join(here, "lib", platform.machine()),
    )


def of_this_process() -> Settings:
    return read(os.environ)
