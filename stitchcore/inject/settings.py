"""Settings of the job side: the only reader of its environment variables.

| variable | meaning |
|---|---|
| STITCH_STORE | folder of requests, answers, artifacts, sessions; with a gateway its cache |
| STITCH_MODE | off, observe (time and submit, never swap), optimize (default) |
| STITCH_WAIT | seconds to wait for the answer before the first step; 0 (default): swap in later |
| STITCH_SESSION | name of this run's events; made up when absent |
| STITCH_PUBLIC_KEYS | 64 hexadecimal digits; two keys may be given with a comma between |
| STITCH_PUBLIC_KEY | the same, as `stitch run` calls it |
| STITCH_CONTROL | share of steps that keep running the original for comparison (default 0.01); |
|   | what an earlier start has shown to be faster is compared after 0.1 s over it |
| STITCH_GUARD | ratio of stitched to original beyond which a step is rolled back (default 1.02) |
| STITCH_MEMORY | bytes by which peak memory may grow before a swap is taken back; default 5 % |
| STITCH_PLUGIN | folder of the native files; default beside this module |
| STITCH_GATEWAY | https://host:port of a gateway, asked instead of the store |
| STITCH_CA | file of the certificates that the gateway's must be signed by |
| STITCH_SERVER_NAME | name in the gateway's certificate, where STITCH_GATEWAY has an address |
| STITCH_TOKEN_FILE | file of the token sent with each request, read anew each time |
| STITCH_CACHE_LIMIT | bytes of the cache folder, of which 80 % are used (default 1 GiB) |
| STITCH_BASELINE | original steps before a swap: default 50 with a gateway, else 0 |
| STITCH_ALLOW_UNMEASURED | 1: a step that cannot be swapped later may be swapped unmeasured, and |
|   | an artifact for a GPU that no worker has proved may be tried (program.admit) |

TF_CONFIG, and a rank that another launcher sets (RANKS), tell the process's place in its job.
Without STITCH_GATEWAY and without STITCH_STORE nothing happens. With a gateway the cache folder is
/stitchcore/cache where that exists, else `stitchcore/job` in the user's cache folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from . import reasons, timer, wire
from . import swap_group as group

MODES = ("off", "observe", "optimize")
POD_CACHE = "/stitchcore/cache"
CACHE_LIMIT = 2**30
PUBLIC_KEYS = 2  # the present one, and the one before or after it
BASELINE_STEPS = 50
LOWEST_GUARD, HIGHEST_GUARD = 0.5, 1.2
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")
"""Where launchers write a process's number among those of its job."""


@dataclass(frozen=True)
class Settings:
    """One process's settings. `wait` in seconds, `control` a share of steps, `cache_limit` in
    bytes; `reports` is False for the kinds of process that must not report savings; `group` is the
    place that TF_CONFIG gives the process among its replicas; a step slower than `guard` times the
    original is rolled back, and one whose peak grows by more than 5 % and `memory` bytes."""

    store: str
    mode: str
    wait: float
    session: str
    public_keys: Tuple[bytes, ...]
    control: float
    native: str
    gateway: Optional[wire.Endpoint] = None
    cache_limit: int = CACHE_LIMIT
    baseline: int = 0
    guard: float = timer.SLOWER
    memory: int = 0
    allow_unmeasured: bool = False
    reports: bool = True
    group: Optional[group.Place] = None
    rank: str = ""  # among the job's processes, as whatever started them says: told, not acted on

    @property
    def measured(self) -> bool:
        """True when a swap without a baseline of the job's own needs the policy's leave."""
        return self.baseline > 0 and not self.allow_unmeasured


def _number(
    environment: Mapping[str, str], name: str, default: float, high: float, low: float = 0.0
) -> float:
    try:
        value = float(environment.get(name) or default)
    except ValueError as error:
        raise reasons.Refused(reasons.HOOK_ERROR, f"{name} is not a number") from error
    if not low <= value <= high:
        raise reasons.Refused(reasons.HOOK_ERROR, f"{name} is not between {low:g} and {high:g}")
    return value


def _made_up_session() -> str:
    """Containers of one pod may start in the same second and have the same process number."""
    return f"{int(time.time())}-{os.getpid()}-{os.urandom(4).hex()}"


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name) or "0"
    if value not in ("0", "1"):
        raise reasons.Refused(reasons.HOOK_ERROR, f"{name} is not 0 or 1")
    return value == "1"


def _public_keys(environment: Mapping[str, str]) -> Tuple[bytes, ...]:
    name = "STITCH_PUBLIC_KEYS" if environment.get("STITCH_PUBLIC_KEYS") else "STITCH_PUBLIC_KEY"
    keys = []
    for text in filter(None, (environment.get(name) or "").split(",")):
        if not re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()):
            raise reasons.Refused(reasons.HOOK_ERROR, f"{name} is not a key")
        keys.append(bytes.fromhex(text.strip()))
    if len(keys) > PUBLIC_KEYS:
        raise reasons.Refused(reasons.HOOK_ERROR, f"{name} has more than {PUBLIC_KEYS} keys")
    return tuple(keys)


def _gateway(environment: Mapping[str, str]) -> Optional[wire.Endpoint]:
    url = environment.get("STITCH_GATEWAY")
    if not url:
        return None
    for name in ("STITCH_CA", "STITCH_TOKEN_FILE"):
        if not environment.get(name):
            raise reasons.Refused(reasons.HOOK_ERROR, f"STITCH_GATEWAY needs {name}")
    if not _public_keys(environment):
        raise reasons.Refused(reasons.HOOK_ERROR, "STITCH_GATEWAY needs STITCH_PUBLIC_KEYS")
    name = environment.get("STITCH_SERVER_NAME") or ""
    return wire.parse_url(url, environment["STITCH_CA"], environment["STITCH_TOKEN_FILE"], name)


def _cache(environment: Mapping[str, str]) -> str:
    if os.path.isdir(POD_CACHE):
        return POD_CACHE
    home = environment.get("XDG_CACHE_HOME") or os.path.expanduser(os.path.join("~", ".cache"))
    return os.path.join(home, "stitchcore", "job")


def _reports(environment: Mapping[str, str]) -> bool:
    """False for parameter servers and evaluators, as TensorFlow's TF_CONFIG names them."""
    try:
        task = json.loads(environment.get("TF_CONFIG") or "{}").get("task", {})
        return task.get("type") not in ("ps", "evaluator")
    except (ValueError, AttributeError):
        return True  # not ours to judge: TensorFlow says what is wrong with it


def _rank(environment: Mapping[str, str]) -> str:
    """As TF_CONFIG names the process, say "worker 1"; else the number that a launcher gave it; ""
    where there is none."""
    try:
        task = json.loads(environment.get("TF_CONFIG") or "{}").get("task") or {}
        if task:
            return f"{task.get('type', 'worker')} {int(task.get('index', 0))}"[:64]
    except (ValueError, TypeError, AttributeError):
        return ""
    told = (environment.get(name, "") for name in RANKS)
    return next((rank for rank in told if rank.isdigit()), "")


def read(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables. Raises Refused(HOOK_ERROR) naming a bad one."""
    mode = environment.get("STITCH_MODE") or "optimize"
    if mode not in MODES:
        raise reasons.Refused(reasons.HOOK_ERROR, f"STITCH_MODE is not one of {', '.join(MODES)}")
    session = environment.get("STITCH_SESSION") or _made_up_session()
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", session) or session.startswith("."):
        raise reasons.Refused(reasons.HOOK_ERROR, "STITCH_SESSION is not a file name")
    here = os.path.dirname(os.path.abspath(__file__))
    gateway = _gateway(environment)
    steps = BASELINE_STEPS if gateway is not None else 0
    return Settings(
        store=environment.get("STITCH_STORE") or (_cache(environment) if gateway else ""),
        mode=mode,
        wait=_number(environment, "STITCH_WAIT", 0.0, 86400.0),
        session=session,
        public_keys=_public_keys(environment),
        control=_number(environment, "STITCH_CONTROL", 0.01, 0.5),
        native=environment.get("STITCH_PLUGIN") or os.path.join(here, "lib", platform.machine()),
        gateway=gateway,
        cache_limit=int(_number(environment, "STITCH_CACHE_LIMIT", CACHE_LIMIT, 2.0**50)),
        baseline=int(_number(environment, "STITCH_BASELINE", steps, 1e6)),
        guard=_number(environment, "STITCH_GUARD", timer.SLOWER, HIGHEST_GUARD, LOWEST_GUARD),
        memory=int(_number(environment, "STITCH_MEMORY", 0.0, 2.0**50)),
        allow_unmeasured=_flag(environment, "STITCH_ALLOW_UNMEASURED"),
        reports=_reports(environment),
        group=group.place_of(environment.get("TF_CONFIG") or ""),
        rank=_rank(environment),
    )


def of_this_process() -> Settings:
    return read(os.environ)
