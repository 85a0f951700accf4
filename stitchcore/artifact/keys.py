"""Content keys of artifacts and kernels: what they are functions of, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


def content_key(kind: str, parts: Iterable[bytes | str]) -> str:
    """Hexadecimal sha256 over length-prefixed parts, so that no two part lists collide."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def artifact_key(
    digest: str,
    signature: str,
    target: str,
    tf: str,
    abi: int,
    compiler: str,
    options: str,
    code: str | None = None,
) -> str:
    """Key of an artifact: graph digest, input signature, target, TF minor, ABI, compiler, options,
    and this compiler's own code, so that a mended compiler never answers with an old artifact.

    `signature` is the text of the input shapes and types, `tf` is "2.21" (the minor version).
    `code` is the version of the code that made it, where that is another process's.
    """
    made_by = code_version() if code is None else code
    parts = (digest, signature, target, tf, str(abi), compiler, options, made_by)
    return content_key("artifact", parts)


def settings_text(signature: str, preserve: Iterable[str], tenant: str = "") -> str:
    """The `options` of an artifact's key: what of the worker's settings may change an artifact
    (options.Options.signature), the preserved nodes, and whose it is (`request_key`)."""
    text = f"{signature};preserve={json.dumps(sorted(preserve))}"
    return f"{text};tenant={tenant}" if tenant else text


def request_key(
    digest: str,
    target: str,
    tf: str,
    abi: int,
    preserve: Iterable[int],
    xla: bool = False,
    deterministic: bool = False,
    tenant: str = "",
) -> str:
    """Key of a request to the gateway: equal for all jobs that one artifact serves. `tenant` parts
    namespaces, so that none learns from an answer, or how soon it comes, what another one trains.

    `preserve` are canonical ids (`inject.digest.Numbering.ids`), so that names do not matter; `tf`
    is the minor version. Gateway and worker both compute it and believe no one else's.
    """
    preserved = ",".join(map(str, sorted(preserve)))
    parts = (
        digest,
        target,
        tf,
        str(abi),
        preserved,
        f"xla={xla}",
        f"deterministic={deterministic}",
    )
    return content_key("request", (*parts, f"tenant={tenant}") if tenant else parts)


@lru_cache(maxsize=1)
def code_version() -> str:
    """Content key of the package's sources."""
    package = Path(__file__).resolve().parents[1]
    files = sorted(p for p in package.rglob("*") if p.suffix in (".py", ".h", ".cc"))
    return content_key("code", (part for p in files for part in (p.name, p.read_bytes())))


def kernel_key(region: str, target: str, compiler: str, options: str) -> str:
    """Key of a region's compiled kernels: canonical region text, target, compiler, options."""
    return content_key("kernel", (region, target, compiler, options))
