"""What pods are told to run is what the programs take, and restricted in all that it may do."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry

from stitch_operator import metrics_server
from stitch_operator.gateway.__main__ import nested
from stitch_operator.webhook.release import Release
from stitchcore.service.queues import queue_name
from tests.cluster import build, foreign
from tests.helm import charts
from tests.helm.charts import COMBINATIONS, NAMESPACE
from tests.ports import free_port
from tests.waiting import RUN_SECONDS, wait_for

everywhere = pytest.mark.parametrize("combination", COMBINATIONS)
PARSERS: dict[str, Callable[[list[str]], Any]] = {}
for name in ("stitch_operator.webhook", "stitch_operator.gateway", "stitch_operator.reconciler",
             "stitch_operator.store", "stitch_worker"):  # fmt: skip
    PARSERS[name] = importlib.import_module(f"{name}.__main__")._arguments
for name in ("stitch_worker.signer", "stitch_worker.compiler"):
    PARSERS[name] = importlib.import_module(name)._arguments
ENTRY = {True: ["stitch_worker"], False: []}
"""The worker's image says itself what it runs; the operator's is told."""


def worker_pods(found: list[charts.Object]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, its two containers by name) of each entry of `workers`."""
    for name, _, spec in charts.pods(found):
        if "stitch-worker" in name:
            yield name, {one["name"]: one for one in spec["containers"]}


def given(container: dict[str, Any]) -> Any:
    """What a worker's container is told, read as it reads that."""
    program = container.get("command", ["stitch_worker"])[-1]
    return PARSERS[program](container["args"])


@pytest.mark.slow
@everywhere
def test_programs_take_their_arguments(combination: str) -> None:
    seen = set()
    for name, _, spec in charts.pods(charts.of(combination)):
        if "redis" in name:
            continue
        container, *others = spec["containers"]
        for other in others:
            given(other)
            seen.add(other["command"][-1])
        program, *arguments = ENTRY["worker" in name] + container["args"]
        if program in ("stitch_worker.collect", "stitch_operator.check"):
            with pytest.raises(SystemExit) as ended:
                importlib.import_module(program).main([*arguments, "--help"])
            assert ended.value.code == 0
        else:
            PARSERS[program](arguments)
        seen.add(program)
    assert len(seen) >= 7


def test_the_gateway_lets_the_releases_reconciler_read() -> None:
    pods = {name: spec for name, _, spec in charts.pods(charts.of("default"))}
    gateway = PARSERS["stitch_operator.gateway"](
        pods["Deployment/stitch-gateway"]["containers"][0]["args"][1:]
    )
    account = pods["Deployment/stitch-reconciler"]["serviceAccountName"]
    assert gateway.reader == f"{NAMESPACE}/{account}"


@everywhere
def test_what_is_mounted_is_there_and_what_is_there_is_mounted(combination: str) -> None:
    for name, _, spec in charts.pods(charts.of(combination)):
        volumes = {one["name"] for one in spec["volumes"]}
        mounted = [one for part in charts.containers(spec) for one in part["volumeMounts"]]
        assert {one["name"] for one in mounted} == volumes, name
        for container in spec["containers"]:
            paths = [one["mountPath"] for one in container["volumeMounts"]]
            for argument in container.get("args", ()):
                value = argument.partition("=")[2]
                if value.startswith("/"):
                    inside = any(f"{value}/".startswith(f"{path}/") for path in paths)
                    assert inside, (name, argument)


@everywhere
def test_a_webhook_starts_what_it_would_inject(combination: str) -> None:
    """First, so that a release whose runtime cannot be pulled is never asked."""
    found = charts.of(combination)
    pods = {name: spec for name, _, spec in charts.pods(found)}
    (first,) = pods["Deployment/stitch-webhook"]["initContainers"]
    release = charts.release_of(found)
    assert first["image"] == release["image"]
    assert first["imagePullPolicy"] == release["imagePullPolicy"]
    (folder,) = first["args"]
    assert folder in {one["mountPath"] for one in first["volumeMounts"]}


@everywhere
def test_every_pod_is_restricted_and_its_root_is_read_only(combination: str) -> None:
    """What the API server says of it is in test_install.py."""
    for name, _, spec in charts.pods(charts.of(combination)):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["enableServiceLinks"] is False, "a Service's variables are no settings of ours"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in charts.containers(spec):
            made = container["securityContext"]
            assert made["readOnlyRootFilesystem"] is True, name
            assert made["allowPrivilegeEscalation"] is False
            assert made["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"]
        for volume in spec["volumes"]:
            (kind,) = set(volume) - {"name"}
            assert kind in ("emptyDir", "configMap", "secret", "projected", "persistentVolumeClaim")
            assert kind != "emptyDir" or volume[kind]["sizeLimit"]


def test_no_secret_stands_in_the_open() -> None:
    """Credentials come from Secrets by variable or file; a process list shows none."""
    for combination in COMBINATIONS:
        text = charts.text_of(combination)
        assert "kind: Secret\n" not in text
        for _, _, spec in charts.pods(charts.objects(text)):
            for container in charts.containers(spec):
                for entry in container.get("env", ()):
                    open_ = ("HOME", "AWS_ENDPOINT_URL", "STITCH_STORE_CA",
                             "STITCH_STORE_TOKEN_FILE")  # fmt: skip
                    assert "valueFrom" in entry or entry["name"] in open_
                assert not any("$(" in one for one in container.get("args", ()))


def test_who_starts_compile_children_has_no_credential() -> None:
    """Nor a mount that the container with them writes to, but for the socket's folder."""
    for combination in COMBINATIONS:
        for name, _, spec in charts.pods(charts.of(combination)):
            assert "stitch-worker" not in name or spec["automountServiceAccountToken"] is False
        for name, pod in worker_pods(charts.of(combination)):
            compiler, worker = pod["compiler"], pod["worker"]
            assert [one["name"] for one in compiler["env"]] == ["HOME"], name
            assert "envFrom" not in compiler
            shared = {one["name"]: one["mountPath"] for one in compiler["volumeMounts"]}
            assert shared == {"socket": "/run/stitch", "compiler-tmp": "/tmp"}, name
            others = {one["name"] for one in worker["volumeMounts"]}
            assert "kernel-key" in others and others & set(shared) == {"socket"}, name
            assert given(worker).compiler == given(compiler).socket
            assert compiler["image"] == worker["image"], "one compiler, of one version"
            assert given(compiler).seconds == given(worker).seconds
            assert given(compiler).target == given(worker).target


MIG = """
store: {persistence: {storageClassName: fast}}
workers:
  cpu-tf221:
    tensorflow: "2.21"
    target: sm_80
    resources:
      requests: {cpu: 500m, memory: 8Gi}
      limits: {memory: 24Gi, nvidia.com/mig-3g.20gb: 2, nvidia.com/mig-1g.5gb: "1"}
"""


def test_a_worker_is_told_what_its_pod_holds() -> None:
    """Cores by the pod's requests, as Kubernetes tells them; GPUs by limits, slices as sevenths."""
    sets = [(charts.of(one), None) for one in ("default", "gpus")]
    sets.append((charts.objects(charts.rendered(MIG)), 1.0))
    for objects, gpus in sets:
        for _, pod in worker_pods(objects):
            limits = pod["compiler"]["resources"]["limits"]
            wanted = float(limits.get("nvidia.com/gpu", 0)) if gpus is None else gpus
            assert given(pod["worker"]).reserved_gpus == wanted
            told = {
                one["name"]: one["valueFrom"]["resourceFieldRef"]
                for one in pod["worker"]["env"]
                if one["name"].endswith("_MILLICORES")
            }
            assert told == {
                f"STITCH_{variable}_MILLICORES": {
                    "containerName": name, "resource": "requests.cpu", "divisor": "1m"
                }
                for variable, name in (("RESERVED", "worker"), ("COMPILER", "compiler"))
            }  # fmt: skip
            assert not any("gpu" in one for one in pod["worker"]["resources"]["limits"])


def test_a_task_is_given_its_grace() -> None:
    for combination in COMBINATIONS:
        found = charts.of(combination)
        pods = {name: spec for name, _, spec in charts.pods(found)}
        for name, pod in worker_pods(found):
            assert pods[name]["terminationGracePeriodSeconds"] > given(pod["worker"]).grace
            most = pod["compiler"]["resources"]["limits"]["memory"]
            assert int(most.removesuffix("Gi")) * 2**30 > given(pod["compiler"]).memory


def test_keda_reads_the_figure_that_the_gateway_gives() -> None:
    """From a port of its Service, and where the trigger says; workers may be none at first."""
    found = charts.of("keda")
    one = charts.one(found, "ScaledObject", "stitch-worker-cpu-tf221")
    (trigger,) = one["spec"]["triggers"]
    queue = queue_name("cpu-x86-64-v4", "2.21")
    assert one["spec"]["minReplicaCount"] == 0
    pod = charts.one(found, "Deployment", "stitch-gateway")["spec"]["template"]["spec"]
    given = PARSERS["stitch_operator.gateway"](pod["containers"][0]["args"][1:])
    assert given.on_demand == [queue]
    address, _, path = trigger["metadata"]["url"].removeprefix("http://").partition("/")
    host, _, port = address.partition(":")
    service = charts.one(found, "Service", host.removesuffix(f".{NAMESPACE}.svc"))
    assert int(port) in {one["port"] for one in service["spec"]["ports"]}
    pods = [
        metrics_server.serve_metrics(
            *("127.0.0.1", 0, CollectorRegistry()),
            {"/queues": lambda one=waiting: nested({queue: one})},
        )
        for waiting in (7, 0)
    ]
    asked = [read_by_keda(trigger["metadata"], f"127.0.0.1:{port}/{path}") for port in pods]
    assert asked == [7, 0], "each gateway has what was handed in to it"
    assert trigger["metadata"]["aggregateFromKubeServiceEndpoints"] == "true"
    assert trigger["metadata"]["aggregationType"] == "sum", "and workers are for all of it"
    assert "replicas" not in charts.one(found, "Deployment", "stitch-worker-cpu-tf221")["spec"]
    other = charts.one(found, "ScaledObject", "stitch-worker-cpu-tf215")["spec"]
    assert other["minReplicaCount"] == 2 and other["triggers"][0]["type"] == "prometheus"


def read_by_keda(metadata: dict[str, str], address: str) -> Any:
    """As its scaler asks one address, and as GJSON walks a path."""
    said = httpx.get(f"http://{address}", trust_env=False).json()
    for name in metadata["valueLocation"].split("."):
        said = said[name]
    return said


@pytest.mark.slow
def test_keda_knows_all_that_its_triggers_say() -> None:
    """By its own schema: what it does not know it ignores, without a word."""
    if reason := build.unable():
        pytest.skip(reason)
    one = charts.one(charts.of("keda"), "ScaledObject", "stitch-worker-cpu-tf221")
    for trigger in one["spec"]["triggers"]:
        known = foreign.keda_triggers()[trigger["type"]]
        for name, value in trigger["metadata"].items():
            assert value in known[name].get("allowedValue", [value]), name
        needed = {name for name, one in known.items() if not {"optional", "default"} & one.keys()}
        assert needed <= trigger["metadata"].keys()


def test_workers_for_gpus_are_told_which() -> None:
    """What they find out themselves is their processor."""
    values = "workers: {h100: {tensorflow: '2.21', target: sm_90}, own: {tensorflow: '2.21'}}"
    found = [one for one in yaml.safe_load_all(charts.rendered(values)) if one]
    targets = {}
    for name in ("h100", "own"):
        pod = charts.one(found, "Deployment", f"stitch-worker-{name}")["spec"]["template"]["spec"]
        targets[name] = given(pod["containers"][0]).target
    assert targets == {"h100": "sm_90", "own": ""}


# ---- probes, as the kubelet would run them -------------------------------------------------------
def probe(component: str, kind: str, folder: Path) -> int:
    """The exit code of an exec probe whose heartbeat is in `folder`."""
    component, _, number = component.partition("#")
    pods = {name: spec for name, _, spec in charts.pods(charts.of("default"))}
    container = pods[f"Deployment/stitch-{component}"]["containers"][int(number or 0)]
    command = container[kind]["exec"]["command"]
    assert command[:2] == ["python", "-c"]
    program = command[2].replace("/tmp/", f"{folder}/")
    return subprocess.run([sys.executable, "-c", program]).returncode


@pytest.mark.parametrize("component", ["signer", "worker-cpu-tf221", "worker-cpu-tf221#1"])
def test_heartbeats_are_judged_by_their_age(component: str, tmp_path: Path) -> None:
    both = [probe(component, kind, tmp_path) for kind in ("readinessProbe", "livenessProbe")]
    assert both == [1, 0], "one that waits for its broker is not ready, and not restarted"
    beat = tmp_path / "heartbeat"
    for age, expected in ((0, [0, 0]), (120, [1, 0]), (4000, [1, 1])):
        beat.touch()
        then = time.time() - age
        os.utime(beat, (then, then))
        found = [probe(component, kind, tmp_path) for kind in ("readinessProbe", "livenessProbe")]
        assert found == expected, age


def test_a_compilation_never_outlasts_the_liveness_of_its_worker() -> None:
    """Broker gone, task running: the heartbeat stands still as long as the longest task takes."""
    for _, pod in worker_pods(charts.of("gpus")):
        text = pod["worker"]["livenessProbe"]["exec"]["command"][2]
        assert f"> {int(given(pod['worker']).seconds) + 300})" in text


# ---- the bundled broker --------------------------------------------------------------------------
def test_the_bundled_broker_asks_for_its_password(tmp_path: Path) -> None:
    """The command of the pod, run here by Debian's redis-server."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    pods = {name: spec for name, _, spec in charts.pods(charts.of("default"))}
    command = list(pods["Deployment/stitch-redis"]["containers"][0]["command"])
    port = free_port()
    text = command[-1].replace("/tmp", str(tmp_path)).replace("--port 6379", f"--port {port}")
    environment = {"PATH": os.environ["PATH"], "REDIS_PASSWORD": "correct-horse"}
    process = subprocess.Popen(
        [*command[:-1], text], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )

    def said(*words: str) -> str:
        cli = ["redis-cli", "-p", str(port), "--no-auth-warning", *words]
        return subprocess.run(cli, capture_output=True, text=True).stdout.strip()

    try:
        wait_for(lambda: "NOAUTH" in said("ping"), "it answers, to nobody yet")
        assert said("-a", "wrong", "ping") != "PONG"
        assert said("-a", "correct-horse", "ping") == "PONG"
        assert "noeviction" in said("-a", "correct-horse", "config", "get", "maxmemory-policy")
        about = Path(f"/proc/{process.pid}")
        assert (about / "comm").read_text().strip() == "redis-server", "signals reach it"
        assert "horse" not in (about / "environ").read_text() + (about / "cmdline").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=RUN_SECONDS) == 0
    finally:
        if process.poll() is None:
            process.kill()


def test_the_runtimes_size_is_what_the_release_has_by_default() -> None:
    """Defaults of the chart and of the record cannot differ."""
    document = charts.release_of(charts.of("default"))
    for field, value in (("runtimeSize", "runtime_size"), ("cacheSize", "cache_size"),
                         ("cpu", "cpu"), ("memory", "memory"), ("delivery", "delivery"),
                         ("ephemeralStorage", "ephemeral_storage")):  # fmt: skip
        default = dict(zip(Release.__struct_fields__, defaults(), strict=True))[value]
        assert document[field] == default


def defaults() -> list[Any]:
    """Of every field of Release; None where there is none."""
    missing = len(Release.__struct_fields__) - len(Release.__struct_defaults__)
    return [None] * missing + list(Release.__struct_defaults__)
