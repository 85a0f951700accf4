"""Decides what of a release's trust is to be written, from what is there and the time. Pure but for
dice: no input, no output, and the same step again where a write did not happen.

Two bundles say who is trusted: the hooks' caBundle (by API servers, of the webhook), and the
ConfigMap (by pods, of the gateway and the store). Each is all that its servers' Secrets show, and
the authority and its successor where the reconciler makes the certificates itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from stitch_operator.names import AUTHORITIES, PUBLIC_KEYS
from stitch_operator.reconciler import bundle as bundles
from stitch_operator.reconciler import issuing, keys, rotation
from stitch_operator.reconciler.bundle import Bundle
from stitch_operator.reconciler.holding import Decision, Held, Role, Seen, Write, text
from stitch_operator.reconciler.rotation import Times
from stitch_operator.webhook.release import Release

KEYS_STATE = f"{bundles.STATE}-keys"


def decide(seen: Seen, release: Release, times: Times, now: float) -> Decision:
    """All writes that are safe now, in any order. None: it is right, or has to wait."""
    trusted = _authorities(seen.get(Role.TRUST))
    known = _keys(seen.get(Role.TRUST))
    hooked = _hooked(seen.get(Role.HOOKS))
    writes: list[Write | None] = []
    if release.certificates.mode == "self":
        writes += _certificates(seen, release, trusted, hooked, times, now)
    if not release.secrets.signing:
        writes.append(keys.signing(seen.get(Role.SIGNING), known, times, now))
    if not release.secrets.kernel_key:
        writes.append(keys.kernel_key(seen.get(Role.KERNEL_KEY)))
    if not release.secrets.broker:
        host = f"{release.name}-redis.{release.namespace}.svc"
        writes.append(keys.broker(seen.get(Role.BROKER), host))
    writes.append(_trust(seen, trusted, known, times, now))
    if hooked is not None:
        writes.append(_hooks(seen, hooked, times, now))
    wanted = [write for write in writes if write is not None]
    strange = [write.role for write in wanted if write.role in seen and not seen[write.role].ours]
    problems = [f"{role}: it is not of this release, and stays as it is" for role in strange]
    return Decision(
        tuple(write for write in wanted if write.role not in strange),
        (*problems, *_missing(seen, release)),
    )


def _certificates(
    seen: Seen,
    release: Release,
    trusted: Bundle,
    hooked: Bundle | None,
    times: Times,
    now: float,
) -> list[Write | None]:
    secret = seen.get(Role.AUTHORITY)
    known = [trusted] if hooked is None else [trusted, hooked]
    writes = [rotation.authority(f"{release.name}-ca", secret, known, times, now)]
    by = rotation.signer(secret)
    if by is None:
        return writes
    for role, bundle, names in (
        (Role.WEBHOOK, hooked, webhook_names(release)),
        (Role.GATEWAY, trusted, gateway_names(release)),
        (Role.STORE, trusted, _service(release, "store")),
    ):
        writes.append(rotation.server(role, seen.get(role), by, bundle, names, times, now))
    return writes


def webhook_names(release: Release) -> list[str]:
    """Hosts that API servers call the webhook by."""
    return [*_service(release, "webhook"), *release.certificates.webhook_names]


def gateway_names(release: Release) -> list[str]:
    """Hosts that pods call the gateway by."""
    return list(dict.fromkeys([*_service(release, "gateway"), release.server_name]))


def _service(release: Release, component: str) -> list[str]:
    service = f"{release.name}-{component}.{release.namespace}.svc"
    return [service, f"{service}.cluster.local"]


def _needed(seen: Seen, role: Role) -> dict[str, str]:
    by = rotation.authorities(seen.get(Role.AUTHORITY))
    return {**by, **rotation.needed(seen.get(role))}


def _trust(seen: Seen, trusted: Bundle, known: Bundle, times: Times, now: float) -> Write | None:
    """The ConfigMap. What nobody can name at present, a Secret being away, stays as it was."""
    needed = _needed(seen, Role.GATEWAY) or trusted.items
    needed = {**needed, **rotation.needed(seen.get(Role.STORE))}
    public = keys.public_keys(seen.get(Role.SIGNING)) or known.items
    if not needed or not public:
        return None
    authorities = trusted.needing(needed, now, times.grace)
    valid = known.needing(public, now, 0.0)
    data = {AUTHORITIES: authorities.text.encode(), PUBLIC_KEYS: valid.text.encode()}
    states = {bundles.STATE: authorities.state, KEYS_STATE: valid.state}
    return _changed(seen, Role.TRUST, data, states)


def _hooks(seen: Seen, hooked: Bundle, times: Times, now: float) -> Write | None:
    needed = _needed(seen, Role.WEBHOOK)
    if not needed:
        return None
    wanted = hooked.needing(needed, now, times.grace)
    data = {name: wanted.text.encode() for name in seen[Role.HOOKS].data}
    return _changed(seen, Role.HOOKS, data, {bundles.STATE: wanted.state})


def _changed(
    seen: Seen, role: Role, data: Mapping[str, bytes], states: Mapping[str, str]
) -> Write | None:
    present = seen.get(role)
    if present is not None and present.data == data:
        if all(present.annotations.get(name) == state for name, state in states.items()):
            return None
    return Write(role, data, states)


def _authorities(config_map: Held | None) -> Bundle:
    certificates = issuing.certificates(text(config_map, AUTHORITIES))
    return bundles.read(certificates, config_map.annotations if config_map else {})


def _keys(config_map: Held | None) -> Bundle:
    public = keys.listed(text(config_map, PUBLIC_KEYS))
    return bundles.read(public, config_map.annotations if config_map else {}, KEYS_STATE)


def _hooked(hooks: Held | None) -> Bundle | None:
    """What every hook trusts."""
    if hooks is None or not hooks.data:
        return None
    trusted = [issuing.certificates(pem) for pem in hooks.data.values()]
    common = reduce(lambda a, b: {k: a[k] for k in a if k in b}, trusted)
    return bundles.read(common, hooks.annotations)


def _missing(seen: Seen, release: Release) -> list[str]:
    """What somebody else was to bring and did not."""
    problems = []
    if release.certificates.mode == "existing":
        for role, name in (
            (Role.WEBHOOK, release.webhook_tls),
            (Role.GATEWAY, release.gateway_tls),
        ):
            if not rotation.needed(seen.get(role)):
                problems.append(f"Secret {name}: it is not there, or its ca.crt is no certificate")
    if release.secrets.signing and not keys.public_keys(seen.get(Role.SIGNING)):
        name = f"Secret {release.secrets.signing}"
        problems.append(f"{name}: it is not there, or its {keys.SIGNS} is not 32 bytes")
    return problems
