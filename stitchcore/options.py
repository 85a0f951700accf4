"""Settings of the command line and the worker: the only reader of their environment variables.

| variable | meaning | default |
|---|---|---|
| STITCH_STORE | requests, answers, artifacts and sessions | `$XDG_CACHE_HOME/stitch/store` |
| STITCH_CACHE | folder of compiled translation units | `$XDG_CACHE_HOME/stitch/kernels` |
| STITCH_KEY | file of the user's signing key | `$XDG_DATA_HOME/stitch/signing.key` |
| STITCH_DUMP | folder for the text of every stage | no dump |
| STITCH_RESTART | an edited file of such a folder, to go on from | from the start |
| STITCH_VERIFY_PASSES | 1: check the loop IR after each pass of the scheduler | 0 |
| STITCH_PLANNER | exhaustive, explore, exact or auto | exhaustive |
| STITCH_WITHOUT | mechanisms to leave out (words of `stitch plan --help`), commas between | none |
| STITCH_TUNE | seconds for measuring other schedules and cuts of a job's kernels | 0: none |
| STITCH_LIBRARY | folder of schedules found for kernels before (`stitch tune --library`) | none |
| STITCH_MEMORY | bytes by which peak memory may grow: what the device has free | 5 % of it |
| STITCH_JOBS | compilers that run at a time | cores |
| STITCH_WORKER_MEMORY | resident bytes the worker may use | 8 GiB |
| STITCH_WORKER_SECONDS | seconds the worker may take for one graph | 600 |
| STITCH_WAIT | seconds `stitch run --wait` holds the first step back | 600 |
| STITCH_STORE_CA | authority that a store `stitch://host:port` is trusted by | none |
| STITCH_STORE_TOKEN_FILE | token for such a store | none |
| STITCH_LEDGER | the gateway's ledger: a file, or a postgresql:// URL | |
| STITCH_BROKER | URL of the broker (`python -m stitch_worker`) | redis://127.0.0.1:6379/0 |
| STITCH_LEASES | URL of the Redis that keeps leases (`python -m stitch_worker`) | the broker |
| STITCH_RESERVED_MILLICORES | thousandths of cores that a worker's container requests | 0 |
| STITCH_COMPILER_MILLICORES | the same of the container that compiles for it | 0 |
| NO_COLOR | not empty: text alone, no colours and no line that is drawn again | |
| FORCE_COLOR | not empty: colours where the output is no terminal, too | |
| COLUMNS | how wide the output is | the terminal's; 140 elsewhere |

Variables of the job side are read in `inject/settings.py`, in the job's process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PLANNER = "exhaustive"
"""The planner where nobody names one: of the command line, of jobs and of a cluster's workers."""


@dataclass(frozen=True)
class Printing:
    """How text is printed: `plain` without any escape code, `coloured` where it is no terminal,
    too; `columns` says that a width is given."""

    plain: bool
    coloured: bool
    columns: bool


def printing_of_this_process() -> Printing:
    given = os.environ
    wide = given.get("COLUMNS", "").isdigit()
    return Printing(bool(given.get("NO_COLOR")), bool(given.get("FORCE_COLOR")), wide)


class BadOption(ValueError):
    """An environment variable whose value cannot be used; the message names it and the mend."""


@dataclass(frozen=True)
class Options:
    """One process's settings. Bytes and seconds; `signature` is their part of cache keys."""

    store: Path
    cache: Path
    key: Path
    dump: Path | None = None
    planner: str = PLANNER
    tune: float = 0.0
    jobs: int = 1
    worker_memory: int = 8 * 2**30
    worker_seconds: float = 600.0
    wait: float = 600.0
    restart: Path | None = None
    verify_passes: bool = False
    without: tuple[str, ...] = ()
    library: Path | None = None
    memory: int = 0

    @property
    def signature(self) -> str:
        """What of these settings may change an artifact."""
        left_out = f" without={','.join(self.without)}" if self.without else ""
        library = " library" if self.library is not None else ""
        memory = f" memory={self.memory}" if self.memory else ""
        return signature(self.planner, self.tune) + left_out + library + memory


def signature(planner: str, tune: float) -> str:
    """What of a worker's settings may change an artifact, as part of its key."""
    return f"planner={planner}" + (f" tune={tune:g}" if tune else "")


def read(environment: Mapping[str, str]) -> Options:
    """Options from environment variables. Raises BadOption naming the variable."""
    home = Path(environment.get("HOME") or "/tmp")
    caches = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "stitch"
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share") / "stitch"
    dump, restart = environment.get("STITCH_DUMP"), environment.get("STITCH_RESTART")
    library = environment.get("STITCH_LIBRARY")
    return Options(
        store=Path(environment.get("STITCH_STORE") or caches / "store").absolute(),
        cache=Path(environment.get("STITCH_CACHE") or caches / "kernels").absolute(),
        key=Path(environment.get("STITCH_KEY") or data / "signing.key").absolute(),
        dump=Path(dump).absolute() if dump else None,
        planner=environment.get("STITCH_PLANNER") or PLANNER,
        tune=_number(environment, "STITCH_TUNE", 0, 0, 3600),
        jobs=int(_number(environment, "STITCH_JOBS", os.cpu_count() or 1, 1, 1024)),
        worker_memory=int(_number(environment, "STITCH_WORKER_MEMORY", 8 * 2**30, 2**28, 2**50)),
        worker_seconds=_number(environment, "STITCH_WORKER_SECONDS", 600, 1, 86400),
        wait=_number(environment, "STITCH_WAIT", 600, 0, 86400),
        restart=Path(restart).absolute() if restart else None,
        verify_passes=_number(environment, "STITCH_VERIFY_PASSES", 0, 0, 1) != 0,
        without=listed(environment.get("STITCH_WITHOUT") or ""),
        library=Path(library).absolute() if library else None,
        memory=int(_number(environment, "STITCH_MEMORY", 0, 0, 2**50)),
    )


def listed(text: str) -> tuple[str, ...]:
    """Words with commas between them, each once, in one order."""
    return tuple(sorted({word.strip() for word in text.split(",")} - {""}))


def of_this_process() -> Options:
    """Options of this process's environment."""
    return read(os.environ)


def broker_url(environment: Mapping[str, str]) -> str:
    """The broker's URL, which may hold a password."""
    return environment.get("STITCH_BROKER") or "redis://127.0.0.1:6379/0"


def ledger_url(environment: Mapping[str, str]) -> str:
    """The ledger's file or URL, which may hold a password; "" where there is none."""
    return environment.get("STITCH_LEDGER", "")


def store_access(environment: Mapping[str, str], url: str) -> dict[str, str]:
    """What `stitchcore.artifact.store.open_store` needs beside the URL of a store that is served
    over HTTPS; nothing for others. Raises BadOption naming a missing variable."""
    if not url.startswith("stitch://"):
        return {}
    names = {"ca": "STITCH_STORE_CA", "token_file": "STITCH_STORE_TOKEN_FILE"}
    for name in names.values():
        if not environment.get(name):
            raise BadOption(f"{name} is not set, and {url} needs it")
    return {key: environment[name] for key, name in names.items()}


def leases_url(environment: Mapping[str, str]) -> str:
    """The URL of the leases' Redis, which may hold a password; "" where nobody named one."""
    return environment.get("STITCH_LEASES") or ""


def reserved_cores(environment: Mapping[str, str]) -> float:
    """Cores that this process's pod requests, as Kubernetes tells it; nothing elsewhere."""
    total = 0
    for name in ("STITCH_RESERVED_MILLICORES", "STITCH_COMPILER_MILLICORES"):
        text = environment.get(name) or "0"
        if not text.isdecimal():
            raise BadOption(f"{name}={text!r}: a whole number, 2000 for two cores")
        total += int(text)
    return total / 1000


@dataclass(frozen=True)
class GatewayPlace:
    """Where a gateway is, as jobs are told it."""

    url: str
    token_file: Path
    ca: Path


def gateway_of_this_process() -> GatewayPlace:
    """STITCH_GATEWAY, STITCH_TOKEN_FILE and STITCH_CA. Raises BadOption naming a missing one."""
    names = ("STITCH_GATEWAY", "STITCH_TOKEN_FILE", "STITCH_CA")
    values = [os.environ.get(name, "") for name in names]
    for name, value in zip(names, values, strict=True):
        if not value:
            raise BadOption(f"{name} is not set: `stitch serve` prints what to set")
    if not values[0].startswith("https://"):
        raise BadOption("STITCH_GATEWAY is not https://host:port")
    return GatewayPlace(values[0], Path(values[1]), Path(values[2]))


def _number(
    environment: Mapping[str, str], name: str, default: float, low: float, high: float
) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise BadOption(f"{name}={text!r} is not a number") from None
    if not low <= value <= high:
        raise BadOption(f"{name}={text!r} is not between {low:g} and {high:g}")
    return value
