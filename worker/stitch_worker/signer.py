"""The signer: signs artifacts that workers made, after checking all that can be checked without
reading a graph. The only process with the signing key; it has no broker and starts nothing.

    python -m stitch_worker.signer --store URL --key FILE [--also-valid HEX]
        [--also-valid-file FILE] [--leaked HEX] [--leaked-file FILE] [--revoke KEY] [--resign]
        [--once] [--heartbeat FILE]

It takes each `unsigned/<key>/`, recomputes the artifact's key from the request it was made for,
checks manifest, names, sizes, hashes and library headers, writes the issue time, signs, publishes
`artifacts/<key>/`, answers the request and removes `unsigned/<key>/`. What does not hold is refused
with the reason. Compromised workers can so at worst publish a wrong artifact for a graph that was
handed in, never for another.

Any number of signers may run at once: of one artifact all write the same bytes (its issue time is
when it was handed in, as the store says), and each refuses only what still waits afterwards.

A key that leaked signs nothing again: `--leaked` names its public half, and what it has signed is
removed, since nobody can tell by whom; it is built and signed anew when it is asked for.

Rotation: start with the new key and `--also-valid` the old one's public half, `--resign` once when
all clients know the new key, then drop the old. In a cluster the reconciler does it: the signer
reads both files again, and when they change it signs again what the other key signed. Revocation:
`--revoke` puts an artifact's key into `revoked.json`, which rides on the gateway's answers, and
removes the artifact.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stitch_worker import unsigned
from stitch_worker.answers import Answers, token_of
from stitch_worker.revocation import revoke, revoked
from stitch_worker.unsigned import Origin
from stitchcore import options
from stitchcore.artifact import manifest as manifests
from stitchcore.artifact import package, sign
from stitchcore.artifact.check import KEY, check_files
from stitchcore.artifact.keys import artifact_key, settings_text
from stitchcore.artifact.ratio import REPORT, step_ratio, stored_ratio
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import MANIFEST, SIGNATURE
from stitchcore.service import startup
from stitchcore.service.startup import needed

log = logging.getLogger("stitch.signer")
POLL_SECONDS = 0.5
PUBLIC_KEYS = "public_keys.json"
TAKEN = "taken"
"""Another signer was quicker."""


@dataclass(frozen=True)
class Keys:
    """`signs` signs; `public` keys are its own and at most one other that is valid meanwhile;
    what `leaked` ones signed is nobody's."""

    signs: Ed25519PrivateKey
    public: tuple[str, ...]
    leaked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signer:
    """`key` signs; `public_keys` are its own and at most one other that is valid meanwhile;
    `leaked` ones are valid no longer."""

    store: Store
    key: Ed25519PrivateKey
    public_keys: tuple[str, ...]
    signature: str = options.signature(options.PLANNER, 0.0)
    """The workers' Options.signature: part of an artifact's key."""
    leaked: tuple[str, ...] = ()


def run_once(signer: Signer) -> dict[str, str]:
    """Handle all that waits: what became of each artifact key ("signed", TAKEN, a reason's value).

    A store that does not answer leaves an artifact where it is, for the next round. No artifact
    ends the signer, whatever it is: it would meet the same one again after each start.
    """
    done: dict[str, str] = {}
    for key in signer.store.list(unsigned.FOLDER):
        try:
            if unsigned.waiting(signer.store, key):
                done[key] = _handle(signer, key)
        except Refused as refused:
            done[key] = refused.refusal.reason.value
            log.warning("%s", refused.refusal)
        except Exception:
            done[key] = Reason.BAD_ARTIFACT.value
            log.exception("%s cannot be answered and stays", key[:16])
    return done


def _handle(signer: Signer, key: str) -> str:
    store = signer.store
    origin, outcome = None, "signed"
    became: Refused | float
    try:
        origin = unsigned.origin(store, key)
        _sign(signer, key, origin)
        became = stored_ratio(store, key)
    except Refused as refused:
        if refused.refusal.reason is Reason.STORE_UNREADABLE:
            raise
        became = refused
    except Exception as error:  # a stranger's bytes did what nobody thought of
        log.exception("%s", key[:16])
        became = Refused(f"artifact {key[:16]}", Reason.BAD_ARTIFACT, repr(error)[:200])
    if isinstance(became, Refused):
        if not unsigned.waiting(store, key):
            return TAKEN
        outcome = became.refusal.reason.value
        log.warning("refused %s: %s", key[:16], became.refusal)
    if origin is not None and KEY.fullmatch(origin.request):
        _answer(store, origin, key, became)
    unsigned.remove(store, key)
    return outcome


def _answer(store: Store, origin: Origin, key: str, became: Refused | float) -> None:
    """The answer of a refused artifact, or of a signed one with its ratio. Ready is a fact whoever
    holds the lease by now. A refusal is told unless a later worker is building anew; one that only
    saw the artifact wait ("sign") is not coming back for it."""
    current = store.read_answer(origin.request)
    later = token_of(current) > origin.token and (current or {}).get("stage") != "sign"
    token = max(origin.token, token_of(current))
    answers = Answers(store, origin.request, token, origin.open, origin.account)
    if not isinstance(became, Refused):
        answers.ready(key, became, origin.spent, origin.units)
    elif not later:
        answers.refused(became.refusal, origin.spent, origin.units)


def _sign(signer: Signer, key: str, origin: Origin) -> None:
    """Check and publish one artifact. Raises Refused."""
    store = signer.store
    if not KEY.fullmatch(key) or not KEY.fullmatch(origin.request):
        raise Refused(key[:80], Reason.BAD_ARTIFACT, "not a key")
    if key in revoked(store):
        raise Refused(f"artifact {key[:16]}", Reason.REVOKED, "it is on the revocation list")
    if package.exists(store, key):
        return
    handed_in = store.written(unsigned.FOLDER, key, unsigned.MARKER)
    files = unsigned.files(store, key)
    try:
        meta = json.loads(store.read("requests", origin.request, "meta.json"))
        tf = ".".join(str(meta["tf"]).split(".")[:2])
        expected = {"digest": str(meta["digest"]), "target": str(meta["target"]), "tf": tf}
        preserve = [str(name) for name in meta.get("preserve", ())]
        tenant = str(meta.get("tenant", ""))
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("meta.json", Reason.PARSE_ERROR, repr(error)) from error
    manifest = check_files(key, files, expected)
    step_ratio(files.get(REPORT, b""), files[MANIFEST])  # the answer needs it
    recomputed = artifact_key(
        manifest.digest,
        "",
        manifest.target,
        manifest.tf,
        manifest.abi,
        manifest.compiler,
        settings_text(signer.signature, preserve, tenant),
        origin.code,
    )
    if recomputed != key:
        detail = f"its contents have the key {recomputed[:16]}"
        raise Refused(f"artifact {key[:16]}", Reason.DIGEST_MISMATCH, detail)
    data = manifests.issue(files[MANIFEST], int(handed_in))
    signed = {
        **files,
        MANIFEST: data,
        SIGNATURE: sign.sign(signer.key, data),
    }
    store.publish(signed, SIGNATURE, "artifacts", key)
    log.info("signed %s", key[:16])


# ---- keys --------------------------------------------------------------------------------------
def announce(signer: Signer) -> None:
    """Write which public keys are valid, for the gateway to hand on."""
    data = json.dumps({"public_keys": list(signer.public_keys)}).encode()
    signer.store.write(data, PUBLIC_KEYS)


def resign(signer: Signer) -> int:
    """Sign again with `signer.key` what another valid key signed; how many. What no valid key
    signed is left as it is, and said."""
    count = 0
    for key in signer.store.list("artifacts"):
        if not package.exists(signer.store, key):
            continue
        data = signer.store.read("artifacts", key, MANIFEST)
        signature = signer.store.read("artifacts", key, SIGNATURE)
        if sign.verify(sign.public_hex(signer.key), signature, data):
            continue
        if not any(sign.verify(public, signature, data) for public in signer.public_keys):
            log.warning("%s is signed by no valid key", key[:16])
            continue
        signer.store.write(sign.sign(signer.key, data), "artifacts", key, SIGNATURE)
        count += 1
    return count


def distrust(signer: Signer) -> int:
    """Remove what a leaked key signed; how many."""
    count = 0
    for key in signer.store.list("artifacts") if signer.leaked else ():
        if not package.exists(signer.store, key):
            continue
        data = signer.store.read("artifacts", key, MANIFEST)
        signature = signer.store.read("artifacts", key, SIGNATURE)
        if any(sign.verify(public, signature, data) for public in signer.leaked):
            signer.store.delete("artifacts", key)
            count += 1
    return count


# ---- the process -------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> int:
    """Sign until SIGTERM or SIGINT."""
    parsed = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return startup.guarded("signer", lambda: _run(parsed))


def _run(parsed: argparse.Namespace) -> int:
    with needed(f"--key {parsed.key}", "a file of 32 bytes that only the signer may read"):
        sign.load_or_create_key(parsed.key)
    with needed("--also-valid", "at most one other public key, of 64 hexadecimal digits"):
        keys = _keys(parsed)
    store = startup.store(parsed.store)
    settings = options.signature(parsed.planner, parsed.tune)
    signer = Signer(store, keys.signs, keys.public, settings, keys.leaked)
    announce(signer)
    if parsed.revoke:
        revoke(signer.store, parsed.revoke)
        return 0
    if parsed.resign:
        log.info("%d artifacts signed again", resign(signer))
        return 0
    if parsed.once:
        distrust(signer)
        run_once(signer)
        return 0
    _complete(signer)
    _serve(signer, lambda: _keys(parsed), parsed.heartbeat)
    return 0


def _keys(parsed: argparse.Namespace) -> Keys:
    """The key that signs and the public keys that are valid, its own first, as files have them now.
    Raises OSError or ValueError."""
    key = sign.load_or_create_key(parsed.key)
    also = [*parsed.also_valid, *_words(parsed.also_valid_file)]
    public = tuple(dict.fromkeys([sign.public_hex(key), *also]))
    leaked = tuple(dict.fromkeys([*parsed.leaked, *_words(parsed.leaked_file)]))
    if len(public) > 2 or not all(KEY.fullmatch(digits) for digits in (*public, *leaked)):
        raise ValueError(", ".join((*also, *leaked)))
    if set(public) & set(leaked):
        raise ValueError("a key that leaked is valid")
    return Keys(key, public, leaked)


def _words(file: Path | None) -> list[str]:
    return file.read_text(encoding="ascii").split() if file and file.exists() else []


def _serve(signer: Signer, keys: Callable[[], Keys], heartbeat: Path | None) -> None:
    """Until a signal. `heartbeat` is touched after each round: a probe's evidence; what a process
    before has left of it says nothing."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    if heartbeat is not None:
        heartbeat.unlink(missing_ok=True)
    while not end.wait(POLL_SECONDS):
        try:
            signer = _present(signer, keys)
            run_once(signer)
        except Refused as refused:
            log.warning("%s", refused.refusal)
            end.wait(5.0)
        if heartbeat is not None:
            heartbeat.touch()


def _present(signer: Signer, keys: Callable[[], Keys]) -> Signer:
    """The signer with the keys of now. Files that cannot be used leave it as it is."""
    try:
        present = keys()
    except (OSError, ValueError) as error:
        log.warning("keys: %s", error)
        return signer
    if (present.public, present.leaked) == (signer.public_keys, signer.leaked):
        return signer
    changed = replace(signer, key=present.signs, public_keys=present.public, leaked=present.leaked)
    announce(changed)
    _complete(changed)
    return changed


def _complete(signer: Signer) -> None:
    """Remove what a leaked key signed, and sign again what the other valid one signed. Two keys are
    a rotation, which an end of this process may have cut short, and files that were read one before
    and one after a change."""
    if signer.leaked:
        log.info("a key leaked: %d artifacts that it signed removed", distrust(signer))
    if len(signer.public_keys) > 1:
        log.info("two keys are valid: %d artifacts signed again", resign(signer))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_worker.signer")
    parser.add_argument("--store", required=True, help="folder or fsspec URL")
    parser.add_argument("--key", type=Path, required=True, help="file of the Ed25519 key")
    parser.add_argument("--also-valid", action="append", default=[], metavar="HEX")
    parser.add_argument("--also-valid-file", type=Path, help="the same, read again when it changes")
    parser.add_argument("--leaked", action="append", default=[], metavar="HEX",
                        help="public half of a key that leaked: what it signed goes")  # fmt: skip
    parser.add_argument("--leaked-file", type=Path, help="the same, read again when it changes")
    parser.add_argument("--planner", default=options.PLANNER, help="as the workers'")
    parser.add_argument("--tune", type=float, default=0.0, help="as the workers'")
    parser.add_argument("--revoke", action="append", default=[], metavar="KEY")
    parser.add_argument("--resign", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--heartbeat", type=Path, help="file to touch after each round")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
