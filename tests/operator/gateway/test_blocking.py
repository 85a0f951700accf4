"""Calls that may block: the gateway ends whatever they do at that moment."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from stitch_operator.gateway.blocking import Blocking, every
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("answered", [True, False])


def test_a_loop_ends_that_is_cancelled_as_its_call_ends(answered: bool) -> None:
    """A gateway that was told to stop in that instant stayed for good."""

    async def main() -> None:
        blocking, gate = Blocking("store", 1, PATIENCE_SECONDS), threading.Event()

        async def call() -> None:
            await blocking(gate.wait)

        loop = asyncio.create_task(every(call, 60.0))
        await asyncio.sleep(0.05)
        if answered:
            gate.set()
            time.sleep(0.1)  # its thread has told this loop, which has not looked yet
            await asyncio.sleep(0)
        loop.cancel()
        done, _ = await asyncio.wait([loop], timeout=PATIENCE_SECONDS)
        assert done and loop.cancelled()
        gate.set()
        blocking.finish()

    asyncio.run(main())
