"""Calls that may block (store, broker, API server, ledger), in threads and with a deadline.

A thread that hangs in a store cannot be stopped, only given up: there are so many and no more, and
when all hang, callers are told at once that the service is unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from stitch_operator.gateway.database import disk_full, words
from stitch_operator.gateway.problems import Problem, Rejected
from stitchcore.artifact.store import DISK_FULL
from stitchcore.errors import Refused

LOG = logging.getLogger("stitch.gateway")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Blocking:
    """`threads` calls at a time, each within `seconds`. `what` names the thing that is called."""

    def __init__(self, what: str, threads: int, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._most = threads * 64
        self._under_way = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=what)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def finish(self) -> None:
        """Close, once what has begun is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def __call__(
        self,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Raises Rejected(UNAVAILABLE) when it is late, or the store or ledger refuses."""
        if self._under_way >= self._most:
            raise Rejected(Problem.UNAVAILABLE, f"the {self._what} does not answer")
        self._under_way += 1
        future = self._pool.submit(function, *arguments, **named)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
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

    def _done(self, _future: object) -> None:
        self._under_way -= 1


async def every(function: Any, seconds: float) -> None:
    """Call again and again; a failure is logged and the next round tries anew."""
    while True:
        with contextlib.suppress(Rejected):  # logged where it arose
            try:
                await function()
            except (ValueError, KeyError, TypeError) as error:
                LOG.error("%s: %r", function.__name__, error)
        await asyncio.sleep(seconds)
