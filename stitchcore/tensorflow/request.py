"""A request's graph as the job handed it over, untrusted: its size is limited before parsing."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import Reason, Refused

MAX_BYTES = 512 * 2**20


def read_graph(data: bytes) -> Any:
    """The GraphDef in `data`. Raises Refused(PARSE_ERROR)."""
    if len(data) > MAX_BYTES:
        raise Refused("graph.pb", Reason.PARSE_ERROR, f"larger than {MAX_BYTES} bytes")
    try:
        return graph_pb2.GraphDef.FromString(data)
    except DecodeError as error:
        raise Refused("graph.pb", Reason.PARSE_ERROR, str(error)) from error
