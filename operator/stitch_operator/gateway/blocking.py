"""Calls that may block (store, broker, API server, ledger), in threads and with a deadline.

A thread that hangs in a store cannot be stopped, only given up: there are so many and no more, and
when all hang, callers are told at once that the service is unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from stitch_operator.gateway.database import disk_full, words
from stitch_operator.gateway.fair import Line
from stitch_operator.gateway.problems import Problem, Rejected
from stitchcore.artifact.store import DISK_FULL
from stitchcore.errors import Refused

LOG = logging.getLogger("stitch.gateway")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Call:
    """What waits for a thread, and who is told what became of it."""

    future: Future[Any]
    function: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # it was given up
        try:
            self.future.set_result(self.function())
        except BaseException as error:
            self.future.set_exception(error)


class Blocking:
    """`threads` calls at a time, each within `seconds`. `what` names the thing that is called.
    Namespaces take turns, so that nobody's burst is another's wait; what is `of` none is the
    gateway's own."""

    def __init__(self, what: str, threads: int, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._threads = threads
        self._most = threads * 64
        self._under_way = Counter[str]()
        self._line: Line[Call] = Line()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=what)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._forget()

    def finish(self) -> None:
        """Close, once what has begun is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            waiting = [call for calls in self._line.waiting.values() for call in calls.values()]
        for call in waiting:
            call.future.cancel()

    async def __call__(
        self,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """A call of the gateway's own."""
        return await self.of("", function, *arguments, **named)

    async def of(
        self,
        namespace: str,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Raises Rejected(UNAVAILABLE) when it is late, or the store or ledger refuses."""
        if self._under_way[namespace] >= self._most:
            raise Rejected(Problem.UNAVAILABLE, f"the {self._what} does not answer")
        future = self._in_line(namespace, functools.partial(function, *arguments, **named))
        try:
            async with asyncio.timeout(self._seconds):  # wait_for may lose a cancellation (3.11)
                return await asyncio.wrap_future(future)
        except TimeoutError:
            LOG.error("the %s took longer than %g s", self._what, self._seconds)
            what = f"the {self._what} does not answer"
            raise Rejected(Problem.UNAVAILABLE, what) from None
        except Refused as refused:
            LOG.error("the %s: %s", self._what, refused)
            full = refused.refusal.detail.startswith(DISK_FULL)
            what = f"the {self._what}: {DISK_FULL if full else refused.refusal.reason.value}"
            raise Rejected(Problem.UNAVAILABLE, what) from refused
        except SQLAlchemyError as error:
            LOG.error("the %s: %s", self._what, words(error))
            full = isinstance(error, DBAPIError) and disk_full(error)
            what = DISK_FULL if full else "it cannot be asked now"
            raise Rejected(Problem.UNAVAILABLE, f"the {self._what}: {what}") from error

    def _in_line(self, namespace: str, function: Callable[[], Result]) -> Future[Result]:
        call = Call(Future(), function)
        with self._lock:
            self._under_way[namespace] += 1
            self._line.add(namespace, uuid.uuid4().hex, call)
        call.future.add_done_callback(functools.partial(self._done, namespace))
        self._pool.submit(self._next)  # one for each: which, is decided when a thread is free
        return call.future

    def _next(self) -> None:
        with self._lock:
            taken = self._line.take(self._threads)
        assert taken is not None, "as many are called up as there are threads"
        _, name, call = taken
        call.run()
        with self._lock:
            self._line.done(name)

    def _done(self, namespace: str, _future: object) -> None:
        with self._lock:
            self._under_way[namespace] -= 1
            if not self._under_way[namespace]:
                del self._under_way[namespace]


async def every(function: Any, seconds: float) -> None:
    """Call again and again; a failure is logged and the next round tries anew."""
    while True:
        with contextlib.suppress(Rejected):  # logged where it arose
            try:
                await function()
            except Rejected:
                raise
            except Exception:  # the round is lost, not all that follow
                LOG.exception("%s", function.__name__)
        await asyncio.sleep(seconds)
