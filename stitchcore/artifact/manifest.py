"""The manifest: everything a job must know of an artifact, as one JSON document.

Decoding is strict (msgspec checks every type and required field); fields a newer worker added are
ignored, so a client one minor version older still reads it (docs/contracts.md section 5).
"""

from __future__ import annotations

import msgspec

from stitchcore.inject.contract import KERNEL_ABI, MANIFEST_FORMAT, PATCH_OPERATIONS

MAXIMUM_PARSED_BYTES = 32 * 2**20
"""Of each file that is parsed: in memory JSON may take thirty times its size."""


class LibraryEntry(msgspec.Struct, frozen=True):
    """A shared object of the artifact; `sha256` is hexadecimal."""

    file: str
    sha256: str


class KernelEntry(msgspec.Struct, frozen=True):
    """A kernel: `library` indexes Manifest.libraries; estimates are of one call, in nanoseconds."""

    key: str
    library: int
    symbol: str
    name: str
    bytes_saved: int = 0
    estimate_ns: int = 0


class AddedNode(msgspec.Struct, frozen=True):
    """A node to add: `attr` is base64 of a serialized NodeDef that holds only attributes."""

    name: str
    op: str
    attr: str
    device_of: int
    inputs: tuple[str, ...]


class RegionPatch(msgspec.Struct, frozen=True):
    """What one region changes, over canonical node ids (inject/digest.py)."""

    name: str
    remove: tuple[int, ...] = ()
    add: tuple[AddedNode, ...] = ()
    rewire: tuple[tuple[str, str], ...] = ()
    controls: tuple[tuple[str, str], ...] = ()


class Patch(msgspec.Struct, frozen=True):
    """The change of the graph. Each region's part holds without the others': one that is at fault
    is left out (inject/patch.py)."""

    regions: tuple[RegionPatch, ...] = ()


class Expectation(msgspec.Struct, frozen=True):
    """What the worker measured or estimated; the job's own timing overrules it.

    `bytes_before` and `bytes_after` are of the stitched regions, one operation at a time and by
    their kernels. `bytes_saved` of `bytes_saveable`, `bytes_stitched` of `bytes_intensive`:
    tensorflow/coverage.py. `live_bytes` is what a stitched step holds at most beside variables:
    tensorflow/live_bytes.py."""

    kernels_before: int = 0
    kernels_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_saveable: int = 0
    bytes_saved: int = 0
    bytes_stitched: int = 0
    bytes_intensive: int = 0
    live_bytes: int = 0
    seconds_before: float = 0.0
    seconds_after: float = 0.0


class Manifest(msgspec.Struct, frozen=True):
    """One artifact. `key` is the artifact key, `digest` the graph's, `issued` when it was handed
    to the signer (seconds since 1970; 0: signed by the process that made it). `measured` says that
    its regions were proved and timed on the target: a worker without a GPU compiles for one, and no
    more.
    `functions` is base64 of a zlib-compressed FunctionDefLibrary: what does the work of a launch
    whose kernel cannot (docs/faults.md); `undecided` are regions that no made-up data could show to
    be right or wrong (docs/judging.md)."""

    key: str
    digest: str
    target: str
    tf: str
    compiler: str
    libraries: tuple[LibraryEntry, ...]
    kernels: tuple[KernelEntry, ...]
    patch: Patch
    expect: Expectation = Expectation()
    refusals: dict[str, int] = {}
    format: int = MANIFEST_FORMAT
    abi: int = KERNEL_ABI
    issued: int = 0
    measured: bool = True
    functions: str = ""
    undecided: tuple[str, ...] = ()


def encode(manifest: Manifest) -> bytes:
    """Canonical JSON: sorted keys, so that equal manifests are equal bytes."""
    return msgspec.json.encode(manifest, order="sorted")


def issue(data: bytes, issued: int) -> bytes:
    """The manifest as it was made, with when it was issued: what a later release added to it stays,
    so that signers of both write the same. `data` is one that `decode` has taken."""
    made = {**msgspec.json.decode(data), "issued": issued}
    return msgspec.json.encode(made, order="sorted")


def decode(data: bytes) -> Manifest:
    """Raises msgspec.ValidationError for anything that is not a manifest of this format."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.ValidationError(str(error)) from error
    if manifest.format != MANIFEST_FORMAT:
        detail = f"manifest format {manifest.format}, this is {MANIFEST_FORMAT}"
        raise msgspec.ValidationError(detail)
    added = (node.op for region in manifest.patch.regions for node in region.add)
    bad = set(added) - PATCH_OPERATIONS
    if bad:
        raise msgspec.ValidationError(f"patch adds operations that are not allowed: {sorted(bad)}")
    return manifest
