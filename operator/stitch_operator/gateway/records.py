"""Bodies of requests, typed and bounded: what passes here is within its limits and nothing else.

Unknown fields are ignored, so that a client one version ahead is served. A graph may be large; all
else is small, which is checked before anything is made of it: three bytes of JSON can become an
object of seventy.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.wire import MESSAGES, fields_of

JSON, PROTOBUF = "application/json", "application/x-protobuf"
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Small = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Session = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\Z")]
Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
KeyOrNone = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
Target = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}\Z")]
Version = Annotated[str, msgspec.Meta(pattern=r"^2\.[0-9]{1,3}(\.[0-9A-Za-z.+-]{1,32})?\Z")]
Type = Literal["swap-begin", "swap-ok", "rolled-back", "crashed-before", "acknowledged", "timed",
               "refused", "may-swap"]  # fmt: skip
MAX_PRESERVED = 100_000
BESIDE_BYTES = 2**20
"""Of a body beside its graph."""


class SubmitGraph(msgspec.Struct, frozen=True):
    """POST /v1/graphs. `graph` is a serialized GraphDef (base64 in JSON), structure only; the job
    `waits` where its first step is held back until the answer is there."""

    target: Target
    tf: Version
    graph: bytes
    abi: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    preserve: Annotated[list[Name], msgspec.Meta(max_length=MAX_PRESERVED)] = []
    xla: bool = False
    deterministic: bool = False
    session: Session | None = None
    waits: bool = False

    @property
    def minor(self) -> str:
        """TensorFlow's minor version: "2.21"."""
        return ".".join(self.tf.split(".")[:2])


class Event(msgspec.Struct, frozen=True):
    """POST /v1/jobs/events. `graph` is the canonical digest, `key` the artifact's; `timed` (the
    process has timed a step) and `refused` (the job leaves a graph as it is, `final` for good) have
    none. A refusal may be of no graph: the job's input pipeline, say, or all of the process."""

    session: Session
    seq: Count
    graph: KeyOrNone
    type: Type
    key: KeyOrNone = ""
    exit_code: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None = None
    reason: Text = ""
    detail: Text = ""
    group: Annotated[str, msgspec.Meta(max_length=256)] = ""
    round: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    size: Small = 0
    rank: Small = 0
    step: Count = 0
    confirm: Count | None = None
    margin: Count = 0
    final: bool = False


class Savings(msgspec.Struct, frozen=True):
    """POST /v1/savings. Totals of (session, graph) since the session began, in nanoseconds."""

    session: Session
    seq: Count
    graph: Key
    key: Key
    steps: Count
    baseline_ns: Count
    stitched_ns: Count
    lost_ns: Count = 0
    interval: list[float | None] | None = None
    pairs: Count = 0
    devices: Annotated[float, msgspec.Meta(ge=0, le=65536)] = 1.0

    @property
    def measured(self) -> bool:
        """Whether there is an interval: without one nothing is known, and nothing is counted."""
        ends = self.interval or []
        return len(ends) == 2 and all(end is not None and math.isfinite(end) for end in ends)


Record = TypeVar("Record", SubmitGraph, Event, Savings)


class _Outline(msgspec.Struct):
    """Of any body: where its graph is. Nothing is made of the rest."""

    graph: msgspec.Raw = msgspec.Raw(b"")


def decode(data: bytes, content_type: str, kind: type[Record]) -> Record:
    """The record in a body. Raises Rejected: BAD_REQUEST naming the field, or the media type."""
    plain = content_type.partition(";")[0].strip().lower()
    try:
        if plain in (JSON, PROTOBUF) and len(data) - _graph_bytes(data, plain) > BESIDE_BYTES:
            raise Rejected(Problem.TOO_LARGE, f"more than {BESIDE_BYTES} bytes beside the graph")
        if plain == JSON:
            return msgspec.convert(_whole(msgspec.json.decode(data)), type=kind)
        if plain == PROTOBUF:
            return msgspec.convert(_unpacked(data, kind.__name__), type=kind)
    except (msgspec.DecodeError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(Problem.BAD_REQUEST, str(error)[:300]) from error
    raise Rejected(Problem.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {plain[:100]!r}")


def _graph_bytes(data: bytes, plain: str) -> int:
    """How many of a body's bytes are its graph; 0 for a graph that is no text in JSON."""
    if len(data) <= BESIDE_BYTES:
        return 0
    if plain == PROTOBUF:
        return len(MESSAGES["Outline"].FromString(data).graph)
    raw = memoryview(msgspec.json.decode(data, type=_Outline).graph)
    return len(raw) if bytes(raw[:1]) == b'"' else 0


def _whole(decoded: Any) -> Any:
    """JSON has one kind of number: 3.0 is the integer 3."""
    if not isinstance(decoded, dict):
        return decoded
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in decoded.items()
    }


def _unpacked(data: bytes, name: str) -> dict[str, Any]:
    return fields_of(MESSAGES[name].FromString(data))
