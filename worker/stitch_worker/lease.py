"""Single flight across workers: a lease per request, with a fencing token.

Whoever holds the lease of a key does its work; the lease ends by itself when its holder stops
renewing it, and each new holder gets a larger token than all before, so that what an old one still
writes is told from what the new one writes. Redis keeps leases where it is the broker; a folder
keeps them on one machine. Redis may lose its data: a token is then still larger, because it is
never below the clock, nor below the `floor` that the caller read from the store.

The method is Kleppmann's ("How to do distributed locking", 2016): the lease makes double work
rare, the token makes it harmless.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stitchcore.service.queues import SENTINEL, sentinels

SECONDS = 15.0
"""How long a lease lives without renewal."""


@dataclass(frozen=True)
class Lease:
    """A lease that was given: `token` grows from holder to holder, `owner` is this one's alone."""

    key: str
    token: int
    owner: str


class Leases(Protocol):
    """Where leases are kept. Each method raises OSError where that place does not answer."""

    def acquire(self, key: str, floor: int = 0) -> Lease | None:
        """The lease of `key` with a token above `floor` and all before; None while it is held."""

    def renew(self, lease: Lease) -> bool:
        """Prolong it, or take it again where nobody has it since; False: it is another's."""

    def release(self, lease: Lease) -> None:
        """Give it back; nothing happens where it is another's by now."""


def new_owner() -> str:
    """A name no other holder has."""
    return f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


# ---- Redis -------------------------------------------------------------------------------------
_ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local now = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local token = math.max(now[1] * 1000 + math.floor(now[2] / 1000), last + 1, tonumber(ARGV[3]) + 1)
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ARGV[4])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', token), 'PX', ARGV[2])
return string.format('%.0f', token)
"""
_RENEW = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
if held then return 0 end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if last > tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
_TOKEN_SECONDS = 7 * 86400.0


class RedisLeases:
    """Leases in a Redis database, `seconds` long without renewal."""

    def __init__(self, url: str, seconds: float = SECONDS) -> None:
        import redis

        self._client = _client(url, socket_timeout=5, socket_connect_timeout=5)
        self._error = redis.exceptions.RedisError
        self._milliseconds = int(seconds * 1000)

    def acquire(self, key: str, floor: int = 0) -> Lease | None:
        owner = new_owner()
        token = self._run(_ACQUIRE, key, owner, self._milliseconds, floor, _forgotten())
        return Lease(key, int(token), owner) if token else None

    def renew(self, lease: Lease) -> bool:
        held = _held(lease)
        return bool(
            self._run(_RENEW, lease.key, held, self._milliseconds, lease.token, _forgotten())
        )

    def release(self, lease: Lease) -> None:
        self._run(_RELEASE, lease.key, _held(lease))

    def _run(self, script: str, key: str, *arguments: Any) -> Any:
        names = (f"stitch:lease:{key}", f"stitch:token:{key}")
        try:
            return self._client.eval(script, 2, *names, *arguments)
        except self._error as error:
            raise OSError(f"Redis: {error}") from error


def _client(url: str, **limits: float) -> Any:
    """Of the Redis, or of whichever is the master when it is asked."""
    import redis
    import redis.sentinel

    if not url.startswith(SENTINEL):
        return redis.Redis.from_url(url, **limits)
    found = sentinels(url)
    made: Any = redis.sentinel.Sentinel
    asked = made(found.addresses, sentinel_kwargs={**limits, **found.own})
    return asked.master_for(
        found.master,
        db=found.database,
        username=found.user,
        password=found.password,
        **limits,
    )


def _held(lease: Lease) -> str:
    return f"{lease.owner} {lease.token}"


def _forgotten() -> int:
    return int(_TOKEN_SECONDS * 1000)


# ---- a folder ----------------------------------------------------------------------------------
class FolderLeases:
    """Leases in a folder of one machine: one small file per key, changed under a file lock."""

    def __init__(
        self, folder: Path, seconds: float = SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._seconds, self._clock = folder, seconds, clock
        folder.mkdir(parents=True, exist_ok=True)

    def acquire(self, key: str, floor: int = 0) -> Lease | None:
        with self._record(key) as record:
            if record.get("until", 0.0) > self._clock():
                return None
            token = max(int(self._clock() * 1000), int(record.get("token", 0)) + 1, floor + 1)
            lease = Lease(key, token, new_owner())
            record.update(token=token, owner=lease.owner, until=self._clock() + self._seconds)
            return lease

    def renew(self, lease: Lease) -> bool:
        with self._record(lease.key) as record:
            own = record.get("owner") == lease.owner
            if not own and int(record.get("token", 0)) > 0:
                return False
            record.update(token=lease.token, owner=lease.owner, until=self._clock() + self._seconds)
            return True

    def release(self, lease: Lease) -> None:
        with self._record(lease.key) as record:
            if record.get("owner") == lease.owner:
                record.update(owner="", until=0.0)

    @contextmanager
    def _record(self, key: str) -> Iterator[dict[str, Any]]:
        name = hashlib.sha256(key.encode()).hexdigest()
        with (self._folder / name).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                record = json.loads(file.read() or "{}")
            except ValueError:
                record = {}  # its writer was killed half-way: the clock keeps tokens growing
            yield record
            file.seek(0)
            file.truncate()
            file.write(json.dumps(record))
            file.flush()


def open_leases(broker: str, store: str, seconds: float = SECONDS) -> Leases:
    """Leases beside the broker where it is Redis, else in the store's folder.

    Raises ValueError where neither is possible: then give a Redis of its own for leases.
    """
    if broker.startswith(("redis://", "rediss://", "unix://", SENTINEL)):
        return RedisLeases(broker, seconds)
    path = store.removeprefix("file://")
    if "://" in path:
        raise ValueError(f"leases need Redis or a folder: the broker is none, nor is {store!r}")
    return FolderLeases(Path(path) / "leases", seconds)


# ---- keeping one -------------------------------------------------------------------------------
class Keeper:
    """Renews a lease from a thread of its own while the work goes on. `lost` once it is another's.

    Where leases cannot be asked (Redis is down) the work goes on: nobody else can get one either,
    and what is published in the end is checked by token. An async caller has no use for this.
    """

    def __init__(self, leases: Leases, lease: Lease, seconds: float = SECONDS) -> None:
        self.lease = lease
        self.lost = threading.Event()
        self._leases = leases
        self._every = seconds / 4
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if not self.lost.is_set():
            try:
                self._leases.release(self.lease)
            except OSError:
                return  # it ends by itself

    def check(self) -> bool:
        """Ask now whether the lease is still ours."""
        try:
            if not self._leases.renew(self.lease):
                self.lost.set()
        except OSError:
            pass  # see above: the token decides
        return not self.lost.is_set()

    def _run(self) -> None:
        while not self._end.wait(self._every) and self.check():
            pass
