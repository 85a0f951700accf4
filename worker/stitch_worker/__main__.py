"""One worker: finds out what it is, and consumes the one queue of requests it can answer.

    python -m stitch_worker --broker redis://... --store /path/or/url

The broker's URL holds a password: give it by STITCH_BROKER instead where others can see the
process list. Ends at SIGTERM after the running task, or after its grace.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

# Celery reads this when it is imported: SIGTERM gives running tasks their grace, then ends them.
os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")

from stitch_worker import machine
from stitch_worker.app import broker_for, consume, make_app, waiting
from stitch_worker.children import Children, Local
from stitch_worker.compiler import MOST_JOBS
from stitch_worker.idle import Meter, Reserved
from stitch_worker.lease import SECONDS, open_leases
from stitch_worker.remote import Remote
from stitch_worker.service import Service
from stitch_worker.units import load_or_create_secret
from stitchcore.device.host import host
from stitchcore.options import PLANNER, broker_url, leases_url, reserved_cores
from stitchcore.sandbox import isolate
from stitchcore.service import startup
from stitchcore.service.queues import queue_name
from stitchcore.service.startup import needed

log = logging.getLogger("stitch.worker")


def main(
    arguments: Sequence[str] | None = None,
    observe: Callable[[str, str], None] = lambda event, key: None,
) -> int:
    """Consume until a signal; `observe` hears of every stage (event, request key). Returns 2 where
    this machine cannot serve."""
    parsed = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return startup.guarded("worker", lambda: _run(parsed, observe))


def _run(parsed: argparse.Namespace, observe: Callable[[str, str], None]) -> int:
    target, tf = machine.found(parsed.target)
    if parsed.compiler is None:
        machine.confined()
    alone = "a file of 32 bytes alone in its folder, or one that can be made"
    with needed(f"--kernel-key {parsed.kernel_key}", alone):
        secret, hidden = _kernel_secret(parsed.kernel_key)
    if parsed.heartbeat is not None:
        parsed.heartbeat.unlink(missing_ok=True)  # of the process before, in a pod's /tmp
    url = startup.broker(parsed.broker or broker_url(os.environ))
    with needed("what is reserved", "give --reserved-cores N"):
        cores = parsed.reserved_cores or reserved_cores(os.environ)
    store = startup.store(parsed.store)
    with needed("--leases or STITCH_LEASES", "give --leases redis://host:port/0"):
        named = parsed.leases or leases_url(os.environ)
        leases = open_leases(named or url, parsed.store, parsed.lease_seconds)
    children, jobs = _children(parsed, target, tf, hidden)
    service = Service(
        store,
        leases,
        target,
        tf,
        children,
        parsed.planner,
        parsed.tune,
        jobs,
        parsed.lease_seconds,
        observe,
        secret,
    )
    broker = broker_for(
        url,
        parsed.seconds,
        concurrency=parsed.concurrency,
        heartbeat=parsed.heartbeat,
        visibility=parsed.visibility,
        grace=parsed.grace,
    )
    app = make_app(service, broker)
    queue = queue_name(service.target, service.tf)
    log.info("%s, TensorFlow %s: consuming %s", service.target, service.tf, queue)
    name = f"{queue}.{os.getpid()}@%h"
    reserved = Reserved(cores, parsed.reserved_gpus)
    meter = Meter(store.reopened(), target, reserved, lambda: waiting(parsed.concurrency))
    consume(app, name, meter)
    return 0


def _children(
    parsed: argparse.Namespace, target: str, tf: str, hidden: Sequence[str]
) -> tuple[Children, int]:
    """Who starts compile children, and how many compilers it runs at a time. Raises CannotStart."""
    if parsed.compiler is not None:
        remote = Remote(parsed.compiler)
        about = remote.awaited()
        with needed(f"--compiler {parsed.compiler}", "start it from the image of this worker"):
            if (about.target, about.tf) != (target, tf) or not 0 < about.jobs <= MOST_JOBS:
                raise ValueError(f"it compiles for {about}, this worker is {target} with {tf}")
        return remote, about.jobs
    cores = host().cores
    limits = isolate.Limits(
        parsed.seconds,
        parsed.memory,
        int(parsed.seconds * cores),
        hidden=hidden_from_children(parsed.store, [*parsed.hide, *hidden]),
        shown=tuple(parsed.show),
    )
    logs = parsed.logs or Path(tempfile.mkdtemp(prefix="stitch-worker-"))
    return Local(limits, logs), parsed.jobs or cores


def _kernel_secret(path: Path | None) -> tuple[bytes | None, list[str]]:
    """What kernels are cached under, and the folder that children must not see for it. Raises
    OSError or ValueError for a file that cannot be used."""
    if path is None:
        log.info("kernels are not cached for other graphs: no --kernel-key")
        return None, []
    return load_or_create_secret(path), [str(path.absolute().parent)]


def hidden_from_children(store: str, also: Sequence[str]) -> tuple[str, ...]:
    """Folders that compile children must not see: the store, where it is one, and `also`."""
    path = store.removeprefix("file://")
    folders = [*([] if "://" in path else [path]), *also]
    return tuple(str(Path(folder).resolve()) for folder in folders)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_worker")
    parser.add_argument(
        "--broker", default="", help="redis://, sentinel:// or amqp:// URL (or STITCH_BROKER)"
    )
    parser.add_argument("--target", default="", help="sm_90: a GPU's requests (default: own CPU's)")
    parser.add_argument("--store", required=True, help="folder or fsspec URL")
    parser.add_argument("--compiler", type=Path,
                        help="socket of stitch_worker.compiler, which starts compile children and "
                             "has the options about them (default: this process)")  # fmt: skip
    parser.add_argument("--leases", default="",
                        help="Redis of leases, not the broker (or STITCH_LEASES)")  # fmt: skip
    parser.add_argument("--concurrency", type=int, default=1, help="requests at a time")
    parser.add_argument("--jobs", type=int, default=0, help="compilers at a time (0: cores)")
    parser.add_argument("--planner", default=PLANNER)
    parser.add_argument("--tune", type=float, default=0.0, help="seconds of measuring other cuts")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest compilation")
    parser.add_argument("--memory", type=int, default=8 * 2**30, help="bytes of a compilation")
    parser.add_argument("--hide", action="append", default=[], help="folder children may not see")
    parser.add_argument("--show", action="append", default=[],
                        help="folder below /home, /tmp or /run that children need: a compiler's, "
                             "say")  # fmt: skip
    parser.add_argument("--kernel-key", type=Path,
                        help="file, alone in its folder, of the secret that all workers cache "
                             "kernels under; made if missing")  # fmt: skip
    parser.add_argument("--logs", type=Path, help="folder of the compile children's output")
    parser.add_argument("--heartbeat", type=Path, help="file to touch while consuming")
    parser.add_argument("--visibility", type=float, help="seconds; Redis only")
    parser.add_argument("--grace", type=float, help="seconds for a running task at shutdown")
    parser.add_argument("--reserved-cores", type=float, default=0.0,
                        help="cores that nobody else can use while this worker waits: they are "
                             "counted as spent (or STITCH_RESERVED_MILLICORES)")  # fmt: skip
    parser.add_argument("--reserved-gpus", type=float, default=0.0, help="the same of GPUs")
    parser.add_argument("--lease-seconds", type=float, default=SECONDS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
