"""Fuzzes what reads bytes of strangers: `python -m tests.fuzz.decoders NAME --seconds 600 --seed 1`

Valid inputs are cut, spliced, repeated, and their bytes and numbers changed. A decoder may refuse
with the errors that its callers expect, and nothing else; the process may grow by MOST_MIB. Each
input is a function of the seed and its number.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from stitch_operator.gateway import digests
from stitch_operator.gateway.problems import Rejected
from stitch_operator.gateway.records import Event, Savings, SubmitGraph, decode
from stitch_operator.gateway.wire import MESSAGES
from stitch_operator.webhook import review
from stitchcore.artifact import manifest
from stitchcore.artifact.check import check_files
from stitchcore.errors import Refused
from stitchcore.inject import client, gateway, reasons
from stitchcore.inject.contract import MANIFEST_FORMAT
from tests.fuzz import tables
from tests.operator.gateway.support import graph, submission

JSON, PROTOBUF = "application/json", "application/x-protobuf"
MOST_BYTES, MOST_MIB = 2**16, 256
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
KEY, DIGEST = "ab" * 32, "cd" * 32


@dataclass(frozen=True)
class Decoder:
    """What reads bytes, what it may refuse them with, and inputs that it takes."""

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def _body(data: bytes) -> object:
    """A body of each kind, as either media type."""
    media_type = PROTOBUF if data[:1] < b"\x20" else JSON
    if len(data) % 3 == 0:
        return decode(data, media_type, Savings)
    if len(data) % 3 == 1:
        return decode(data, media_type, Event)
    return decode(data, media_type, SubmitGraph)


def _artifact(data: bytes) -> object:
    read = gateway.unpack(data)
    expected = client.Expected("2.21", "cpu-x86-64-v3", (bytes(32),), lambda *_: True)
    return client.verified(read, DIGEST, expected)


def _tar() -> bytes:
    from tests.inject import https_gateway as gateways

    about = {"key": KEY, "digest": DIGEST, "tf": "2.21.0", "target": "cpu-x86-64-v3"}
    document = {**about, "format": MANIFEST_FORMAT, "abi": 1, "kernels": [], "patch": {}}
    document["libraries"] = []
    files = {"manifest.json": json.dumps(document).encode(), "manifest.sig": b"s" * 64}
    return bytes(gateways.tar(files))


def _manifest() -> bytes:
    made = manifest.Manifest(
        KEY, DIGEST, "cpu-x86-64-v3", "2.21.0", "gcc", (), (), manifest.Patch()
    )
    return manifest.encode(made)


def _graph() -> bytes:
    made = MESSAGES["GraphDef"].FromString(graph(size=9))
    made.library.function.add().node_def.add(name="m", op="Const").attr["v"].tensor.int_val.append(
        3
    )
    made.node[1].attr["l"].list.func.add(name="f").attr["T"].type = 1
    return bytes(made.SerializeToString())


def _protobuf() -> bytes:
    made = MESSAGES["SubmitGraph"](target="cpu", tf="2.21.0", abi=1, graph=graph(), preserve=["in"])
    return bytes(made.SerializeToString())


def _pod() -> bytes:
    pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    asked = {"uid": "u", "kind": kind, "operation": "CREATE", "object": pod, "dryRun": False}
    document = {"apiVersion": review.API, "kind": "AdmissionReview", "request": asked}
    return json.dumps(document).encode()


DECODERS = {
    "body": Decoder(
        _body,
        (Rejected,),
        (
            json.dumps(submission(graph())).encode(),
            json.dumps({"session": "s", "seq": 1, "graph": DIGEST, "type": "timed"}).encode(),
            _protobuf(),
        ),
    ),
    "graph": Decoder(lambda data: digests.canonical(data, ["in"]), (), (_graph(), graph(3))),
    "tar": Decoder(_artifact, (reasons.Refused,), (_tar(),)),
    "manifest": Decoder(manifest.decode, (msgspec.MsgspecError,), (_manifest(),)),
    "artifact": Decoder(
        lambda data: check_files(KEY, {"manifest.json": data}, {"digest": DIGEST}),
        (Refused,),
        (_manifest(),),
    ),
    "review": Decoder(review.read, (ValueError,), (_pod(),)),
    "table": Decoder(tables.cpu, (), tables.cpu_seeds()),
    "cuda-table": Decoder(tables.cuda, (), tables.cuda_seeds()),
}


def mutated(seeds: tuple[bytes, ...], seed: int, number: int) -> bytes:
    """The input of a number."""
    draw = random.Random(f"{seed}:{number}")
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        at = draw.randrange(len(data) + 1)
        piece = draw.choice(seeds)
        begin = draw.randrange(len(piece))
        length = draw.choice((1, 2, 4, 16, 64, 512))
        change = draw.randrange(7)
        if change == 0 and data:
            data[at % len(data)] = draw.randrange(256)
        elif change == 1 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif change == 2:
            del data[at : at + length]
        elif change == 3:
            data[at:at] = piece[begin : begin + length]
        elif change == 4:
            data[at:at] = bytes(data[at : at + length]) * draw.choice((2, 16, 200))
        elif change == 5:
            number_ = draw.choice(NUMBERS)
            data[at : at + 8] = number_.to_bytes(8, draw.choice(("little", "big")))
        else:
            text = draw.choice(("null", "[" * 3000, '{"a":' * 3000, '""', "1e999", "-1", "\0", "é"))
            data[at:at] = text.encode()
        del data[MOST_BYTES:]
    return bytes(data)


def finding(decoder: Decoder, data: bytes) -> str:
    """What a decoder does that it may not; "" where it reads or refuses."""
    try:
        decoder.read(data)
    except decoder.errors:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, str]:
    """How many inputs were read within `seconds`, and the first finding with its number, or ""."""
    decoder = DECODERS[name]
    for one in decoder.seeds:
        if finding(decoder, one):
            return 0, f"{name}: a valid input fails"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if found := finding(decoder, mutated(decoder.seeds, seed, number)):
            return number, f"{name}, seed {seed}, number {number}: {found}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if grown > MOST_MIB:
            return number, f"{name}, seed {seed}, number {number}: grew by {grown:.0f} MiB"
        number += 1
    return number, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.decoders")
    parser.add_argument("name", choices=DECODERS)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    count, found = fuzz(given.name, given.seconds, given.seed)
    print(f"{count} inputs: {found or 'nothing'}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
