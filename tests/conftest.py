"""What holds for all tests: the order in which processes take them, which skips are no errors, what
the closing line says, kernels checked after each pass of the scheduler, properties without a
deadline, and what several need of a machine: NVRTC, Landlock, a disk that is soon full."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from stitchcore.errors import Refused
from stitchcore.sandbox import landlock
from stitchcore.toolchain import nvrtc
from tests import later
from tests.cluster import parts
from tests.cluster.parts import Level

SKIPS = {
    "no GPU": r"^GPU: no_device|^PyTorch is not installed",
    "there is a GPU": r"^there is a GPU here",
    "not root": r"run (the tests )?as root",
    "no user namespaces": r"^(the|this) kernel gives no|^no mount namespace",
    "no Landlock": r"^this kernel has no Landlock",
    "huge pages off": r"^huge pages are off",
    "no Go": r"Go is missing",
    "no clang": r"^clang is not installed",
    "no other Python": r"^no python3",
    "a cluster of one's own": r"^KUBECONFIG's",
}
"""Why a test may be skipped; for any other reason a skip is an error. Everything else that tests
need is installed by `make`."""
TIERS = ("nightly", "cluster", "slow")
LEFT_OUT = pytest.StashKey[Counter[str]]()
CLUSTER = "tests/cluster"
CLUSTER_LAST = pytest.StashKey[bool]()

later.install()
settings.register_profile("stitch", deadline=None)  # a busy machine is no fault of what is tested
settings.load_profile("stitch")
os.environ.setdefault("STITCH_VERIFY_PASSES", "1")  # of jobs and commands that tests start
# Compiled once, not by each of the thousands of processes that tests start: an image of a container
# may say otherwise.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    told = getattr(config, "workerinput", {})
    config.stash[CLUSTER_LAST] = told.get("cluster_last", bool(parts.missing(Level.API)))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Asked once, for all processes must have one order and programs may be built meanwhile."""
    node.workerinput["cluster_last"] = node.config.stash[CLUSTER_LAST]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with the most slow tests come first: a long one that is begun last would leave the
    other process idle. Those of a cluster wait more than they compute, and come before all others,
    or after them while its programs are being built."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") is not None)
    last = config.stash[CLUSTER_LAST]

    def order(item: pytest.Item) -> tuple[bool, int]:
        of_cluster = item.nodeid.startswith(CLUSTER)
        return of_cluster if last else not of_cluster, -slow[item.path]

    items.sort(key=order)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests live as long as the process: the garbage collector does not look through
    a gigabyte of them while they are made, nor ever after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


ON_A_GPU = "tests/runtime/test_device.py"


class ByFile(LoadScopeScheduling):
    """The tests of a file share runs of jobs, all tests of a cluster share one: a process each. On
    a GPU, which is lent for minutes, each test is one's."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == ON_A_GPU:
            return nodeid
        return CLUSTER if file.startswith(CLUSTER) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """The entry of SKIPS that this skip is."""
    text = report.longrepr[2].removeprefix("Skipped: ")  # type: ignore[index]
    return next((reason for reason, pattern in SKIPS.items() if re.search(pattern, text)), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    return _checked((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    return _checked((yield))


def _checked(report: Any) -> Any:
    if report.skipped and not hasattr(report, "wasxfail") and reason_of(report) is None:
        report.outcome = "failed"
        report.longrepr = f"a skip whose reason is not in tests/conftest.py: {report.longrepr[2]}"
    return report


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        marks = (mark for mark in TIERS if item.get_closest_marker(mark))
        item.config.stash[LEFT_OUT][next(marks, "not asked for")] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every process leaves out the same."""
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """The closing line: how many ran, were skipped and why, and what the tier leaves out."""
    left_out = session.config.stash[LEFT_OUT]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(left_out)
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not session.config.option.collectonly:
        outcomes = ("passed", "failed", "xfailed", "error")
        ran = sum(len(reporter.stats.get(outcome, ())) for outcome in outcomes)
        skipped = Counter(map(reason_of, reporter.stats.get("skipped", ())))
        parts = (f"{ran} ran", f"{_listed(skipped)} skipped", f"{_listed(left_out)} left out")
        reporter.write_line(", ".join(parts))


def _listed(counts: Counter[Any]) -> str:
    each = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return f"{counts.total()} ({each})" if counts else "none"


@pytest.fixture(scope="session")
def needs_nvrtc() -> None:
    """NVRTC is an extra (cuda12): CI has it, a machine that only stitches for CPUs need not."""
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")


@pytest.fixture(scope="session")
def needs_landlock() -> None:
    """Kernels before 5.13, and those built without it, confine nobody by it."""
    if why := landlock.unavailable():
        pytest.skip(f"this kernel has no Landlock ({why})")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small file system: run as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
