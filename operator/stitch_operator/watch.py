"""One kind of object, kept in memory: list, then watch from there, again and again.

While the API server is away what was last seen is served; a watch that is too old (410) lists anew,
and what has gone meanwhile is seen to have gone: a list replaces everything.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from stitch_operator import names

LOG = logging.getLogger("stitch.watch")
SERVER_SECONDS = 300
LIST_SECONDS = 30.0
TIMEOUT = (5.0, SERVER_SECONDS + 10.0)
PAGE = 500
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
GONE, NOT_FOUND = 410, 404
Key = tuple[str, str]
List = Callable[..., Any]
"""A list call of the client: its keywords are the query, its answer the raw response."""
T = TypeVar("T")


class TooOld(Exception):
    """The watch, or the next page of a list, cannot go on from where it was."""


class Watched(Generic[T]):
    """Objects by (namespace, name), each as `read` makes it; those it makes None of are not kept.
    One thread writes, any may read. `changed` is told, in that thread, of each object what it was
    and what it is: None before it was there, and after it has gone. `served`: the cluster knows
    the kind."""

    def __init__(
        self,
        name: str,
        listing: List,
        read: Callable[[Mapping[str, Any]], T | None],
        failed: Callable[[str], None],
        changed: Callable[[T | None, T | None], None] = lambda before, after: None,
    ) -> None:
        self.name = name
        self._list = listing
        self._read = read
        self._failed = failed
        self._changed = changed
        self._items: dict[Key, T] = {}
        self._synced = threading.Event()
        self.served = False
        self._stop = threading.Event()

    @property
    def synced(self) -> bool:
        """Whether it was listed at least once."""
        return self._synced.is_set()

    def get(self, namespace: str, name: str) -> T | None:
        return self._items.get((namespace, name))

    def values(self) -> list[T]:
        return list(self._items.values())

    def of(self, namespace: str) -> list[T]:
        return [one for (where, _), one in list(self._items.items()) if where == namespace]

    def start(self) -> None:
        threading.Thread(target=self.run, name=f"watch-{self.name}", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread when its present call does."""
        self._stop.set()

    def run(self) -> None:
        """Until `stop`. Errors are waited out, longer each time in a row."""
        pause, version = FIRST_PAUSE, ""
        while not self._stop.is_set():
            try:
                version = self._follow(version or self._relist())
                pause = FIRST_PAUSE
            except TooOld:
                version = ""
            except Exception as error:  # a watch that ended for ever would serve old facts
                self._after(error)
                version, pause = "", min(2 * pause, LONGEST_PAUSE)
            self._stop.wait(pause)

    def _after(self, error: Exception) -> None:
        """A kind that the cluster does not know has no objects; anything else leaves them as they
        were."""
        if isinstance(error, ApiException) and error.status == NOT_FOUND:
            self.served = False
            self._replace({})
            return
        self._failed(self.name)
        LOG.warning("watch of %s: %s: %s", self.name, type(error).__name__, str(error)[:200])

    def _relist(self) -> str:
        """Replaces everything; the version to watch from."""
        found: dict[Key, T] = {}
        token = ""
        while True:
            query: dict[str, Any] = {"_continue": token} if token else {}
            page = json.loads(self._call(LIST_SECONDS, limit=PAGE, **query).data)
            for document in page["items"] or ():  # null in an empty list of metadata
                self._take(found, document)
            token = page["metadata"].get("continue") or ""
            if not token:
                break
        self.served = True
        self._replace(found)
        return str(page["metadata"]["resourceVersion"])

    def _replace(self, found: dict[Key, T]) -> None:
        before, self._items = self._items, found
        for key in before.keys() | found.keys():
            self._tell(before.get(key), found.get(key))
        self._synced.set()

    def _tell(self, before: T | None, after: T | None) -> None:
        if before != after:
            self._changed(before, after)

    def _follow(self, version: str) -> str:
        """One watch; the version it has come to when the server ends it. Raises TooOld."""
        response = self._call(
            TIMEOUT,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=SERVER_SECONDS,
        )
        try:
            for line in _lines(response):
                event = json.loads(line)
                version = self._event(event["type"], event["object"]) or version
                if self._stop.is_set():
                    break
        finally:
            response.close()
        return version

    def _call(self, seconds: float | tuple[float, float], **query: Any) -> Any:
        try:
            return self._list(**query, _preload_content=False, _request_timeout=seconds)
        except ApiException as error:
            if error.status == GONE:
                raise TooOld from error
            raise

    def _event(self, kind: str, document: Mapping[str, Any]) -> str:
        if kind == "ERROR":
            if document.get("code") == GONE:
                raise TooOld
            raise ValueError(str(document.get("message", "the watch ended in an error")))
        metadata = document["metadata"]
        key = _key(metadata)
        before = self._items.get(key)
        if kind == "DELETED":
            self._items.pop(key, None)
        elif kind in ("ADDED", "MODIFIED"):
            self._take(self._items, document)
        self._tell(before, self._items.get(key))
        return str(metadata.get("resourceVersion") or "")

    def _take(self, items: dict[Key, T], document: Mapping[str, Any]) -> None:
        """An object that cannot be read leaves what was known of it."""
        key = _key(document["metadata"])
        try:
            made = self._read(document)
            if made is None:
                items.pop(key, None)
            else:
                items[key] = made
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._failed(self.name)
            LOG.warning("%s %s/%s: %s", self.name, *key, str(error)[:200])
            if key in self._items:
                items[key] = self._items[key]


def _key(metadata: Mapping[str, Any]) -> Key:
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(2**16, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


class WatchGroup:
    """Watches that start and stop together, and are ready when all are."""

    def __init__(self, watches: Sequence[Watched[Any]]) -> None:
        self._watches = watches

    def start(self) -> None:
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        for watch in self._watches:
            watch.stop()

    def ready(self) -> bool:
        return all(watch.synced for watch in self._watches)


def config_map(core: client.CoreV1Api, namespace: str, name: str) -> List:
    """The list call of one ConfigMap."""
    selector = f"metadata.name={name}"
    return functools.partial(core.list_namespaced_config_map, namespace, field_selector=selector)


def custom(objects: client.CustomObjectsApi, plural: str) -> List:
    """The list call of one of our kinds."""
    return functools.partial(objects.list_cluster_custom_object, names.GROUP, names.VERSION, plural)
