"""`python worker_of_tests.py BROKER QUEUE SECONDS`: a real Celery worker; its tasks take time.

What the gateway counts of workers it asks the broker's library; that is the same for any task.
"""

from __future__ import annotations

import sys
import time

from celery import Celery

from stitchcore.service.queues import TASK

broker, queue, seconds = sys.argv[1:]
app = Celery("worker", broker=broker, set_as_current=False)
app.conf.update(task_create_missing_queues=True, task_acks_late=True, worker_prefetch_multiplier=1)


@app.task(name=TASK)
def compiled(_key: str) -> None:
    """As long as a small graph takes."""
    time.sleep(float(seconds))


app.worker_main(
    ["worker", "-Q", queue, "-P", "threads", "-c", "1", "--without-gossip", "--without-mingle",
     "-l", "WARNING"]
)  # fmt: skip
