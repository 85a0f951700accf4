"""Which artifact a command means, and why there is none: a user's last job, where none is named."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from stitchcore.cli import common, run_summary, stored

NONE_YET = "`stitch run -- python train.py` makes one"


def known(store: Path, name: str) -> bool:
    """Whether `name` means an artifact, a graph or a session that is there."""
    return bool(stored.artifacts(store, name) or _sessions(store, name))


def artifact(store: Path, name: str, output: common.Output) -> Path:
    """The newest artifact that `name` means, or of the last job; ends the command where there is
    none, with the reason. A store that no job was run with has its newest."""
    jobs = stored.sessions(store, "")
    meant = name or (jobs[-1].name if jobs else "")
    found = stored.artifacts(store, meant)
    if not found:
        for session in _sessions(store, meant)[-1:]:
            without(session, store, output)
        mend = NONE_YET
        if name and jobs:
            listed = ", ".join(path.name for path in jobs[-stored.LISTED :])
            mend = f"name an artifact, a graph or a session: {listed}"
        common.fail(output, f"{name} in {store}" if name else str(store), "no report there", mend)
    return found[-1]


def _sessions(store: Path, name: str) -> list[Path]:
    if not name:
        return []
    return stored.sessions(store, name) or stored.sessions_of_graph(store, name)


def without(session: Path, store: Path, output: common.Output) -> NoReturn:
    """End the command: what this session's job ran has no report."""
    told = run_summary.of(stored.record_of(session), store)
    why = [f"{cause.reason}: {cause.because}" for cause in told.nothing]
    why += [run_summary.line_of(step) for step in told.steps]
    mends = [cause.mend for cause in told.nothing]
    mends += [f"its page is {page}" for page in sorted(session.glob("report-*.html"))]
    if earlier := stored.artifacts(store):
        mends.append(f"the newest report of another job is {earlier[-1].name[:12]}")
    what = f"the job of {session.name} has no report"
    common.fail(output, what, "; ".join(why), "; ".join(mends) or NONE_YET)
