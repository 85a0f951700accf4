"""The compile child: one request in this folder, one unsigned artifact (or a refusal) beside it.

    python -m stitch_worker.child FOLDER [DESCRIPTOR]

FOLDER holds `request/{graph.pb,meta.json}`. DESCRIPTOR is a socket whose other end compiles C
(workshop.py): the number of sources in four bytes and each source go there as frames (units.py),
and for each comes a frame back: a Unit, or nothing for what is to be compiled here. Progress goes
to standard output as JSON lines; whatever else is printed goes to standard error. At the end there
is `unsigned/`, an artifact's files, or `refused.json`. The graph is a stranger's: this process has
no credentials, no network, and nothing of it is trusted by its parent but bytes that fit what the
parent computed itself.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from stitch_worker import units
from stitchcore.artifact.keys import request_key
from stitchcore.compiler.stages import RemoteCompiler
from stitchcore.device.records import device_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.optimize.request import Request, read_request
from stitchcore.options import Options
from stitchcore.tensorflow import import_blocklist
from stitchcore.toolchain.c_compiler import CompiledLibrary, loop_reports

MAXIMUM_BYTES = 64 * 2**20
"""Largest serialized graph that is taken from strangers: only structure is handed in."""
HAND_OVER_SECONDS = 60.0
MOST_ANSWERED = units.MAXIMUM_LIBRARY + units.MAXIMUM_REMARKS + 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when it left an artifact or a refusal."""
    name, *descriptor = sys.argv[1:] if arguments is None else arguments
    folder = Path(name)
    progress = _claim_stdout()
    try:
        _produce(folder, progress, workshop(int(descriptor[0])) if descriptor else None)
    except Refused as refused:
        _leave(folder, refused.refusal)
    except MemoryError:
        _leave(folder, Refusal("worker", Reason.GRAPH_TOO_LARGE, "out of memory"))
    except Exception as error:
        traceback.print_exc()
        detail = "".join(traceback.format_exception_only(error)).strip()[:500]
        _leave(folder, Refusal("worker", Reason.WORKER_FAILED, detail))
    return 0


def _claim_stdout() -> TextIO:
    """Standard output for progress alone: what libraries print goes to standard error."""
    progress = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return progress


def workshop(descriptor: int) -> RemoteCompiler:
    """Compiles where this process's parent does."""
    channel = socket.socket(fileno=descriptor)

    def compiled(sources: Sequence[str]) -> list[CompiledLibrary | None]:
        units.send(channel, len(sources).to_bytes(4, "big"))
        for source in sources:
            units.send(channel, source.encode())
        return [_library(source, units.receive(channel, MOST_ANSWERED)) for source in sources]

    return compiled


def _library(source: str, answer: bytes | None) -> CompiledLibrary | None:
    if not answer:
        return None
    unit = msgspec.msgpack.decode(answer, type=units.Unit)
    return CompiledLibrary(unit.library, unit.compiler, loop_reports(source, unit.remarks))


def _produce(folder: Path, progress: TextIO, remote_compile: RemoteCompiler | None) -> None:
    handed_over = _awaited(folder / "options.json")

    def report(stage: str, done: int, total: int) -> None:
        line = {"stage": stage, "done": done, "total": total, "time": time.time()}
        progress.write(json.dumps(line) + "\n")
        progress.flush()

    report("start", 0, 1)
    request = read_request(folder / "request")
    if len(request.graph) > MAXIMUM_BYTES:
        detail = f"{len(request.graph)} bytes, at most {MAXIMUM_BYTES}"
        raise Refused("graph", Reason.GRAPH_TOO_LARGE, detail)
    from stitchcore.optimize.pipeline import produce  # imports TensorFlow

    request = Request(_checked(request, str(handed_over["key"])), request.graph, request.meta)
    options = Options(
        folder,
        folder / "kernels",
        folder / "no-key",
        planner=str(handed_over["planner"]),
        tune=float(handed_over["tune"]),
        jobs=int(handed_over["jobs"]),
    )
    device = device_of(str(request.meta["target"]))
    assert device is not None, "the parent has looked"
    artifact = produce(request, device, options, report, remote_compile)
    to = folder / "unsigned"
    to.mkdir()
    for name, data in artifact.files.items():
        (to / name).write_bytes(data)
    report("packed", 1, 1)


def _awaited(path: Path) -> Any:
    """What the parent writes last. Raises Refused(WORKER_FAILED) when it never does."""
    deadline = time.monotonic() + HAND_OVER_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise Refused("worker", Reason.WORKER_FAILED, "nothing was handed over")
        time.sleep(0.02)
    return json.loads(path.read_text())


def _checked(request: Request, key: str) -> str:
    """The graph's digest, computed here. Raises Refused(DIGEST_MISMATCH) when the request's key
    says something else, PARSE_ERROR when the graph is damaged."""
    from stitchcore.inject import digest
    from stitchcore.tensorflow.request import STRANGERS, read_graph

    graph, meta = read_graph(request.graph, STRANGERS), request.meta
    preserve = [str(name) for name in meta.get("preserve", ())]
    try:
        numbering = digest.number(graph, preserve)
        preserved = [numbering.ids[name] for name in preserve]
    except (ValueError, KeyError) as error:
        raise Refused("graph", Reason.PARSE_ERROR, str(error)) from error
    about = _key_fields(meta, request.tf, preserved)
    computed = request_key(numbering.digest, *about, tenant=request.tenant)
    if computed != key or meta.get("digest", numbering.digest) != numbering.digest:
        detail = f"the graph's own key is {computed[:16]}, not {key[:16]}"
        raise Refused("request", Reason.DIGEST_MISMATCH, detail)
    return numbering.digest


def _key_fields(
    meta: Mapping[str, Any], tf: str, preserve: Sequence[int]
) -> tuple[str, str, int, Sequence[int], bool, bool]:
    flags = bool(meta.get("xla", False)), bool(meta.get("deterministic", False))
    return str(meta["target"]), tf, int(meta.get("abi", 1)), preserve, *flags


def _leave(folder: Path, refusal: Refusal) -> None:
    document = {
        "subject": refusal.subject,
        "reason": refusal.reason.value,
        "detail": refusal.detail,
    }
    (folder / "refused.json").write_text(json.dumps(document))


if __name__ == "__main__":
    import_blocklist.leave_out()
    raise SystemExit(main())
