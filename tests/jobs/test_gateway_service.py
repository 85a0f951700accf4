"""An unmodified script, a real gateway, worker, signer and broker: swapped in mid-run, savings in
the ledger. Nothing but environment variables is set around the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.inject import jobs as injected
from tests.inject import replicas
from tests.jobs import judge
from tests.ports import free_port
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker.conftest import Redis

TOKEN = "0123456789abcdef0123456789abcdef"
STEPS, HELD = 200, 60
"""The job waits for its artifact before step HELD: the swap is mid-run however long building it
takes, and after it there are steps for more than the six pairs that an interval needs."""


@dataclass
class Service:
    folder: Path
    port: int
    metrics: int
    processes: list[subprocess.Popen[bytes]]

    def start(self, module: str, *options: object) -> None:
        log = (self.folder / f"{module}.log").open("wb")
        path = os.pathsep.join(str(judge.ROOT / part) for part in ("", "operator", "worker"))
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *map(str, options)],
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    def settings(self) -> dict[str, str]:
        """What an operator tells a job."""
        keys = json.loads((self.folder / "store" / "public_keys.json").read_text())["public_keys"]
        return {
            "STITCH_GATEWAY": f"https://127.0.0.1:{self.port}",
            "STITCH_CA": str(self.folder / "ca.pem"),
            "STITCH_TOKEN_FILE": str(self.folder / "token"),
            "STITCH_PUBLIC_KEYS": ",".join(keys),
            "STITCH_STORE": str(self.folder / "cache"),
            "PYTHONPATH": str(injected.BOOTSTRAP),
        }

    def figures(self) -> dict[str, float]:
        """Samples of /metrics by name, labels left out."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics").text
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name = line.partition("{")[0].partition(" ")[0]
                found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
        return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    pytest.importorskip("celery", reason="pip install -e '.[operator,worker]'")
    from stitch_operator.gateway import tls

    redis = Redis(tmp_path, free_port())
    try:
        redis.start()
    except FileNotFoundError:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    _, certificate, key = tls.make(tmp_path, ["127.0.0.1"])
    (tmp_path / "token").write_text(TOKEN)
    made = Service(tmp_path, free_port(), free_port(), [])
    store = tmp_path / "store"
    made.start("stitch_worker.signer", "--store", store, "--key", tmp_path / "key")
    made.start("stitch_worker", "--store", store, "--broker", redis.url, "--jobs", 2)
    made.start(
        "stitch_operator.gateway", "--store", store, "--broker", redis.url, "--ledger",
        tmp_path / "ledger.db", "--certificate", certificate, "--certificate-key", key,
        "--token-file", tmp_path / "token", "--port", made.port, "--metrics-port", made.metrics,
    )  # fmt: skip
    wait_for((store / "public_keys.json").exists, "the signer has told its key")
    yield made
    for process in made.processes:
        process.terminate()
    for process in made.processes:
        try:
            process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    redis.kill()


@pytest.mark.slow
def test_a_script_is_swapped_in_mid_run_and_its_savings_reach_the_metrics(
    service: Service, tmp_path: Path
) -> None:
    job = judge.Job("small_step")
    plain = judge.untouched(job, tmp_path / "plain", STEPS)
    sessions, ready = tmp_path / "cache" / "sessions", tmp_path / "ready"
    with judge.told(sessions, "ready", ready):
        held = ("--hold", str(HELD), "--until", str(ready))
        settings = {**service.settings(), "STITCH_SESSION": "one"}
        ours = judge.untouched(job, tmp_path / "ours", STEPS, held, settings)
    events = judge.events_of(sessions)
    kinds = [event["type"] for event in events]
    # On a busy machine the kernels may lose; whatever is measured is what must be counted.
    assert all("slower" in line for line in ours.lines), ours.lines
    assert {"submitted", "ready", "swap_begin", "swap_ok", "savings_total"} <= set(kinds), kinds
    (steps,) = next(event for event in events if event["type"] == "end")["steps"]
    assert steps["original_steps"] > 52 and steps["stitched_steps"] > 20
    # Until the swap nothing has changed, bit for bit; 50 steps from it are held to the house's bar
    # (a loss near zero, as at the end of this run, shows any rounding enlarged).
    pairs = list(zip(plain.losses, ours.losses, strict=True))
    swapped = next(step for step, (one, other) in enumerate(pairs) if one != other)
    end = swapped + 50
    assert swapped >= 52
    assert judge.losses_apart(plain.losses[:end], ours.losses[:end]) <= judge.FIRST_TOLERANCE
    total = [event for event in events if event["type"] == "savings_total"][-1]
    assert total["interval"] is not None and total["pairs"] >= 6
    said = (total["baseline_ns"] - total["stitched_ns"] - total["lost_ns"]) / 1e9
    figures = service.figures()
    saved = figures["stitch_cpu_core_seconds_saved_total"]
    lost = figures["stitch_cpu_core_seconds_lost_total"]
    assert saved - lost == pytest.approx(said * total["devices"], rel=1e-3), figures
    assert "refused" not in kinds, [event for event in events if event["type"] == "refused"]


@pytest.mark.slow
def test_replicas_swap_at_a_step_that_the_gateway_names(service: Service, tmp_path: Path) -> None:
    """Two processes of MultiWorkerMirroredStrategy with generated kernels and two collectives."""
    environments = [
        {
            **service.settings(),
            "STITCH_STORE": str(tmp_path / f"cache{rank}"),
            "STITCH_SESSION": "s",
        }
        for rank in range(2)
    ]
    with replicas.processes(tmp_path, environments, 10**6, 0.01, 4096) as ranks:

        def swapped() -> bool:
            found = [one for one in ranks[0].events() if one["type"] in ("group", "disabled")]
            return bool(found) and len(ranks[0].lines()) > found[0].get("agreed", 0) + 100

        replicas.wait_for(lambda: len(ranks[0].lines()) > 20, ranks)
        replicas.wait_for(swapped, ranks)
        (agreed,) = {rank.event("group", round=1, do="swap")["agreed"] for rank in ranks}
        assert replicas.same_variables(ranks) > agreed + 50
        assert {rank.event("swap_begin")["key"] for rank in ranks} == {
            ranks[0].event("swap_ok")["key"]
        }
        assert service.figures()["stitch_swap_groups_aborted_total"] == 0.0
