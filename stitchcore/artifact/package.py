"""Publishing an artifact: libraries, signed manifest and report, complete or not at all."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stitchcore.artifact import manifest as manifests
from stitchcore.artifact import sign
from stitchcore.artifact.manifest import KernelEntry, LibraryEntry, Manifest
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import MANIFEST, SIGNATURE
from stitchcore.launch.region_program import RegionProgram


def library_entries(libraries: Sequence[bytes]) -> tuple[LibraryEntry, ...]:
    """Manifest entries of shared objects. Files are named by position and content, so that files
    of two writers of one key are never taken for each other."""
    digests = [hashlib.sha256(data).hexdigest() for data in libraries]
    return tuple(
        LibraryEntry(f"kernels_{number:02d}_{digest[:16]}.so", digest)
        for number, digest in enumerate(digests)
    )


def kernel_entries(programs: Iterable[RegionProgram]) -> tuple[KernelEntry, ...]:
    """Manifest entries of the distinct kernels that `programs` launch."""
    entries: dict[str, KernelEntry] = {}
    for program in programs:
        for launch in program.launches:
            entries[launch.key] = KernelEntry(
                launch.key,
                launch.library,
                launch.kernel.name,
                launch.kernel.provenance[-1] if launch.kernel.provenance else launch.kernel.name,
                launch.bytes_saved,
                launch.work,
            )
    return tuple(entries.values())


def packed_functions(library: bytes) -> str:
    """A serialized FunctionDefLibrary as a manifest holds it."""
    return base64.b64encode(zlib.compress(library)).decode()


@dataclass(frozen=True)
class Unsigned:
    """All files of an artifact but its signature, by name."""

    key: str
    files: Mapping[str, bytes]


def unsigned(
    manifest: Manifest, libraries: Sequence[bytes], reports: Mapping[str, bytes]
) -> Unsigned:
    """An artifact's files. Raises ValueError when `libraries` are not those of the manifest."""
    if library_entries(libraries) != manifest.libraries:
        raise ValueError("the manifest names other libraries")
    named = {
        entry.file: library for entry, library in zip(manifest.libraries, libraries, strict=True)
    }
    return Unsigned(manifest.key, {**named, **reports, MANIFEST: manifests.encode(manifest)})


def publish(
    store: Store,
    manifest: Manifest,
    libraries: Sequence[bytes],
    key: Ed25519PrivateKey,
    reports: Mapping[str, bytes],
) -> str:
    """Sign and write the artifact: a reader sees all of it or nothing, and of two writers the first
    one's. Raises ValueError when `libraries` are not those of the manifest."""
    files = dict(unsigned(manifest, libraries, reports).files)
    files[SIGNATURE] = sign.sign(key, files[MANIFEST])
    store.publish(files, SIGNATURE, "artifacts", manifest.key)
    return manifest.key


def load(store: Store, key: str, public_key: str) -> tuple[Manifest, tuple[bytes, ...]]:
    """The verified manifest and libraries of an artifact.

    Raises Refused: STORE_UNREADABLE (missing), BAD_SIGNATURE, or BAD_ARTIFACT (a damaged file).
    """
    data = store.read("artifacts", key, MANIFEST)
    if not sign.verify(public_key, store.read("artifacts", key, SIGNATURE), data):
        raise Refused(key, Reason.BAD_SIGNATURE, "the manifest is not signed by this key")
    try:
        manifest = manifests.decode(data)
    except msgspec.DecodeError as error:
        raise Refused(key, Reason.BAD_ARTIFACT, str(error)) from error
    libraries = []
    for entry in manifest.libraries:
        library = store.read("artifacts", key, entry.file)
        if hashlib.sha256(library).hexdigest() != entry.sha256:
            raise Refused(key, Reason.BAD_ARTIFACT, f"{entry.file} is damaged")
        libraries.append(library)
    return manifest, tuple(libraries)


def exists(store: Store, key: str) -> bool:
    """Whether a complete artifact of this key is published."""
    return store.exists("artifacts", key, SIGNATURE)
