"""Times and limits that the pages promise are the ones that the code has.

Other tests take the code's own constants, so that they hold for any; what stands on a page is held
here. A page that says it otherwise, or code that does, fails: mend both in one change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stitch_operator import certificates, connections, metrics, metrics_server
from stitch_operator.gateway import (
    app,
    body,
    graph_size,
    groups,
    identity,
    ledger,
    records,
    savings,
    standing,
    workloads,
)
from stitch_operator.gateway import service as services
from stitch_operator.gateway.limits import Rate
from stitch_operator.reconciler import breakers, conditions, gateway, issuing, loop, status, trust
from stitch_operator.reconciler.rotation import DAY, Times
from stitch_operator.webhook import objects, pieces
from stitchcore.inject import timer

DOCS = Path(__file__).resolve().parents[2] / "docs"
TIMES = Times()
MINUTE, HOUR = 60.0, 3600.0
MIB = 2**20

KUBERNETES = [
    ("or 10 minutes after the last sign", breakers.IMAGE_SECONDS, 10 * MINUTE),
    ("failed within 30 minutes of its start", breakers.EARLY_SECONDS, 30 * MINUTE),
    ("| after an hour; or when a pod of it", breakers.WORKLOAD_SECONDS, HOUR),
    ("A thousand lines of a kind", breakers.MOST, 1000),
    ("a hundred of a namespace", breakers.MOST_OF_NAMESPACE, 100),
    ("five minutes without a word", status.CONTACT_SECONDS, 5 * MINUTE),
    ("at most 16 graphs", status.MOST_GRAPHS, 16),
    ("ten times at most", conditions.MOST_EVENTS, 10),
    ("new figures alone 20 a second", loop.FIGURES[0], 20),
    ("Events 25 a second (250 at once)", loop.EVENTS, (25, 250)),
    ("tells it every five seconds", gateway.PAUSE_SECONDS, 5),
    ("`failurePolicy: Ignore`, 5 s", objects.TIMEOUT_SECONDS, 5),
    ("a projected token for the audience `gateway.stitchcore.io` that lives an hour",
     pieces.TOKEN_SECONDS, HOUR),
    ("a year before its end (10 years)", (TIMES.renew, TIMES.authority), (365 * DAY, 3650 * DAY)),
    ("30 days before their end (90 days)", (TIMES.leaf / 3, TIMES.leaf), (30 * DAY, 90 * DAY)),
    ("signs artifacts | after a year", TIMES.signing, 365 * DAY),
    ("is trusted for 30 days before it signs anything", TIMES.overlap, 30 * DAY),
    ("(an hour; a signing key a day)", (TIMES.grace, TIMES.signing_grace), (HOUR, DAY)),
    ("takes ten minutes instead of 30 days", TIMES.propagation, 10 * MINUTE),
    ("clocks may be an hour apart", issuing.MARGIN, HOUR),
    ("within ten seconds (a minute while", (trust.LOOK_SECONDS, trust.PROBLEM_SECONDS), (10, 60)),
    ("within five seconds, without a restart", certificates.LOOK_SECONDS, 5),
    ("is rolled back (1.02)", timer.SLOWER, 1.02),
]  # fmt: skip
SERVICE = [
    ("Results are kept for 60 s", identity.CACHE_SECONDS, 60),
    ("denials for 10 s and apart", identity.DENIED_SECONDS, 10),
    ("may have 20 tokens denied at once and 1 a second", identity.DENIALS, Rate(1, 20)),
    ("A request's head may take 10 s", connections.HEADER_SECONDS, 10),
    ("its answer 10 minutes until it is read", connections.ANSWER_SECONDS, 10 * MINUTE),
    ("an address has 1,024 at a time", connections.MOST_OF_ADDRESS, 1024),
    ("a connection ends after 10 s", metrics_server.SECONDS, 10),
    ("and an address has eight", metrics_server.MOST_OF_ADDRESS, 8),
    ("Per namespace 200 calls/s (`--calls`)", services.RATES.calls.per_second, 200),
    ("32 MiB/s of graphs", services.RATES.bytes.per_second, 32 * MIB),
    ("1 new compile/s (burst 200)", services.RATES.compiles, Rate(1, 200)),
    ("64 MiB sent, 256 MiB unpacked, ratio 200", body.GRAPHS, body.Limits(64 * MIB, 256 * MIB)),
    ("at most 1 MiB beside the graph", records.BESIDE_BYTES, MIB),
    ("all calls together 1 GiB (then 503)", services.BODY_BYTES, 1024 * MIB),
    ("a body is awaited for a minute at most", app.BODY_SECONDS, MINUTE),
    ("(200,000 nodes and functions, 800,000 inputs, 4,000,000 fields)",
     (graph_size.MOST_NODES, graph_size.MOST_INPUTS, graph_size.MOST_FIELDS),
     (200_000, 800_000, 4_000_000)),
    ("8 GiB of graphs in the store", ledger.Quota.graph_bytes, 8192 * MIB),
    ("2,000,000 rows of the ledger", ledger.Quota.rows, 2_000_000),
    ("what nobody works on for 60 s is enqueued again", standing.SILENT_SECONDS, 60),
    ("for each namespace of the 500 that have totals of their own", metrics.MAX_NAMESPACES, 500),
    ("409 `no_worker_for_target`, ask again in 2 min", standing.NO_WORKER_SECONDS, 2 * MINUTE),
]  # fmt: skip
CONTRACTS = [
    ("(events and savings: 64 KiB)", body.REPORTS.sent, 64 * 2**10),
    ("asked again, each 600 s at most", standing.OTHER_CODE_SECONDS, 600),
    ("not handed in for 30 days", ledger.KEPT_SECONDS, 30 * DAY),
    ("beyond 1.25 x the artifact's measured ratio", savings.RATIO_SLACK, 1.25),
    ("by 50 at least", groups.MARGIN_STEPS, 50),
    ("One row for each pod heard in the last day", workloads.TOLD_SECONDS, DAY),
    ('"contact" (to a minute)', workloads.CONTACT_SECONDS, MINUTE),
    ("100 at most, ordered by their last change", workloads.PAGE, 100),
    ("New figures count as a change every 30 s", workloads.FIGURES_SECONDS, 30),
]
ALL = [(page, *one) for page, some in (
    ("kubernetes.md", KUBERNETES), ("service.md", SERVICE), ("contracts.md", CONTRACTS),
) for one in some]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "words", "value", "promised"), ALL, ids=[f"{one[0]}: {one[1]}"[:60] for one in ALL]
)
def test_the_code_has_what_the_page_promises(
    page: str, words: str, value: object, promised: object
) -> None:
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    assert words in text, "the page says something else now"
    assert value == promised
