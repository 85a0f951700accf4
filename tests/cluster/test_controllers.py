"""The real controllers of every kind make the pods, with our webhook in between: each pod of an
annotated workload is injected, and the controllers notice nothing of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes import client

from tests.cluster import releasing, workloads
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import namespace_in
from tests.cluster.objects import fake_node
from tests.cluster.workloads import KINDS, QUEUE, Kind
from tests.operator.webhook import reference
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
Object = dict[str, Any]
INJECTED, SKIPPED, WORKLOAD = (f"stitchcore.io/{n}" for n in ("injected", "skipped", "workload"))
QUIET_SECONDS = 60.0


@dataclass
class Place:
    """A namespace of the cluster with the controllers; objects as plain JSON."""

    cluster: Cluster
    api: client.ApiClient
    namespace: str
    made: list[tuple[Kind, str]] = field(default_factory=list)

    @property
    def custom(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)

    def create(self, *documents: Object) -> None:
        text = "---\n".join(json.dumps(one) + "\n" for one in documents)
        self.cluster.kubectl("create", "-n", self.namespace, "-f", "-", stdin=text)

    def listed(self, what: str, selector: str = "") -> list[Object]:
        flags = ["-l", selector] if selector else []
        text = self.cluster.kubectl("get", what, "-n", self.namespace, "-o", "json", *flags)
        return list(json.loads(text)["items"])

    def workload(self, kind: Kind, name: str) -> Object:
        return next(o for o in self.listed(_type(kind)) if o["metadata"]["name"] == name)

    def pods(self, name: str) -> list[Object]:
        """Of a workload that is named so, those that are not on their way out."""
        return [
            pod
            for pod in self.listed("pods")
            if pod["metadata"]["name"].startswith(f"{name}-")
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def suspend(self, kind: Kind, name: str, value: bool) -> None:
        patch = json.dumps(kind.suspended(value))
        self.cluster.kubectl(
            *("patch", _type(kind), name, "-n", self.namespace, "--type=merge", "-p", patch)
        )

    def start(self, kind: Kind, name: str, ours: bool, queue: str = "") -> list[Object]:
        """Creates one and waits until all its pods run."""
        self.create(kind.make(name, ours, queue))
        self.made.append((kind, name))
        return self.running(kind, name)

    def running(self, kind: Kind, name: str) -> list[Object]:
        def found() -> list[Object]:
            pods = self.pods(name)
            phases = [pod["status"].get("phase") for pod in pods]
            return pods if phases == ["Running"] * kind.pods else []

        return wait_for(found, f"{kind.pods} pods of {kind.kind} {name}")


def _type(kind: Kind) -> str:
    return f"{kind.plural}.{kind.version}.{kind.group}"


@pytest.fixture(scope="module")
def place(controllers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """With nodes, quota, a training runtime, and our webhook."""
    folder = tmp_path_factory.mktemp("webhook")
    with controllers.api() as api, releasing.webhook(controllers, folder):
        core = client.CoreV1Api(api)
        for number in range(3):
            core.create_node(fake_node(f"gpus-{number}", gpus=100))
        with namespace_in(core) as namespace:
            made = Place(controllers, api, namespace)
            made.create(workloads.training_runtime(), *workloads.queues(namespace))
            yield made


def words(thing: Object) -> dict[str, str]:
    return dict(thing["metadata"].get("annotations") or {})


def totals(pod: Object) -> Object:
    return {kind: reference.totals(pod, kind) for kind in ("requests", "limits")}


def trains(pod: Object) -> bool:
    """Not what Trainer runs before, to fetch data."""
    return "dataset-initializer" not in pod["metadata"]["name"]


def judge(pods: list[Object], name: str) -> None:
    """All are injected, alike, under their workload's name."""
    training = [pod for pod in pods if trains(pod)]
    assert all(INJECTED in words(pod) for pod in training), [words(p) for p in training]
    assert {words(pod)[WORKLOAD] for pod in training} == {name}
    for pod in pods:
        first = pod["spec"].get("initContainers", [{}])[0].get("name")
        assert (first == "stitchcore-runtime") == trains(pod)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_pod_is_injected_and_asks_for_no_more(place: Place, kind: Kind) -> None:
    name, twin = f"a-{kind.plural}", f"z-{kind.plural}"
    pods, others = place.start(kind, name, True), place.start(kind, twin, False)
    judge(pods, name)
    assert not any(INJECTED in words(pod) for pod in others)
    assert sorted(map(str, map(totals, pods))) == sorted(map(str, map(totals, others)))
    assert {pod["status"]["qosClass"] for pod in pods} == {
        pod["status"]["qosClass"] for pod in others
    }


def test_what_controllers_set_stays(place: Place) -> None:
    place.start(KINDS["TFJob"], "environment", True)
    tasks = set()
    for pod in place.pods("environment"):
        values = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        assert values["STITCH_GATEWAY"] and values["PYTHONPATH"].startswith("/stitchcore")
        tasks.add(json.dumps(json.loads(values["TF_CONFIG"])["task"], sort_keys=True))
    assert len(tasks) == 3


@pytest.mark.parametrize("queued", [False, True], ids=["free", "queued"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_suspend_and_resume(place: Place, kind: Kind, queued: bool) -> None:
    """Pods go and come again, injected; the workload and its Jobs are the same ones. Kueue evicts
    by the same field: it is asked to stop the workload, and lets it go on."""
    name = f"s{int(queued)}-{kind.plural}"
    before = place.start(kind, name, True, place.namespace if queued else "")
    judge(before, name)
    uids = {one["metadata"]["uid"] for one in [place.workload(kind, name), *children(place, name)]}
    if queued:
        activate(place, name, False)
    else:
        place.suspend(kind, name, True)
    wait_for(lambda: not place.pods(name), "no pods")
    if queued:
        activate(place, name, True)
    else:
        place.suspend(kind, name, False)
    after = place.running(kind, name)
    judge(after, name)
    assert not {p["metadata"]["uid"] for p in after} & {p["metadata"]["uid"] for p in before}
    now = {one["metadata"]["uid"] for one in [place.workload(kind, name), *children(place, name)]}
    assert now == uids


def children(place: Place, name: str) -> list[Object]:
    """Jobs and JobSets below a workload."""
    found = [*place.listed("jobs.v1.batch"), *place.listed("jobsets.v1alpha2.jobset.x-k8s.io")]
    return [one for one in found if one["metadata"]["name"].startswith(f"{name}-")]


def of_kueue(place: Place, name: str) -> Object:
    """Kueue's Workload for ours."""
    found = [
        one
        for one in place.listed("workloads.v1beta1.kueue.x-k8s.io")
        if any(owner["name"] == name for owner in one["metadata"]["ownerReferences"])
    ]
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]


def activate(place: Place, name: str, value: bool) -> None:
    held = of_kueue(place, name)["metadata"]["name"]
    patch = json.dumps({"spec": {"active": value}})
    what = "workloads.v1beta1.kueue.x-k8s.io"
    place.cluster.kubectl(
        *("patch", what, held, "-n", place.namespace, "--type=merge", "-p", patch)
    )


def accounted(workload: Object) -> Any:
    """What Kueue counts: of each pod set the number of pods and what they use of the quota."""
    asked = [
        (one["count"], [c.get("resources") for c in one["template"]["spec"]["containers"]],
         one["template"]["spec"].get("initContainers"))
        for one in workload["spec"]["podSets"]
    ]  # fmt: skip
    used = workload["status"]["admission"]["podSetAssignments"]
    return asked, [(one["count"], one["flavors"], one["resourceUsage"]) for one in used]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kueue_counts_what_it_counted(place: Place, kind: Kind) -> None:
    name, twin = f"q-{kind.plural}", f"r-{kind.plural}"
    judge(place.start(kind, name, True, place.namespace), name)
    place.start(kind, twin, False, place.namespace)
    ours, theirs = of_kueue(place, name), of_kueue(place, twin)
    assert accounted(ours) == accounted(theirs)
    assert {c["type"] for c in ours["status"]["conditions"] if c["status"] == "True"} == {
        c["type"] for c in theirs["status"]["conditions"] if c["status"] == "True"
    }


def test_a_group_of_plain_pods_stays_a_group(place: Place) -> None:
    """Kueue hashes the pods of a group to tell their roles: injected alike they are of one role."""
    group = {QUEUE: place.namespace, "kueue.x-k8s.io/pod-group-name": "group"}
    total = {"kueue.x-k8s.io/pod-group-total-count": "3", workloads.OPTIMIZE: "true"}
    made = []
    for number in range(3):
        pod = workloads.template()
        metadata = {"name": f"group-{number}", "labels": group}
        metadata["annotations"] = {**total, **workloads.RUNS}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})
    place.create(*made)
    running = lambda: [p["status"].get("phase") for p in place.pods("group")] == ["Running"] * 3  # noqa: E731
    wait_for(running, "the group runs")
    pods = place.pods("group")
    assert all(INJECTED in words(pod) for pod in pods)
    assert len({words(pod)["kueue.x-k8s.io/role-hash"] for pod in pods}) == 1
    (held,) = [
        one for one in place.listed("workloads.v1beta1.kueue.x-k8s.io")
        if one["metadata"]["name"] == "group"
    ]  # fmt: skip
    assert [one["count"] for one in held["spec"]["podSets"]] == [3]


def test_a_job_of_volcano_is_stamped_as_its_crd_has_it(place: Place) -> None:
    """Its controller is not here: what it would make from the templates is made by hand."""
    tasks = [{"name": name, "replicas": 1, "template": workloads.template()} for name in "ab"]
    place.create({
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": "volcano", "annotations": {workloads.OPTIMIZE: "true"}},
        "spec": {"minAvailable": 2, "tasks": tasks},
    })  # fmt: skip
    (held,) = place.listed("jobs.v1alpha1.batch.volcano.sh")
    for number, task in enumerate(held["spec"]["tasks"]):
        assert words(task["template"])[WORKLOAD] == "volcano"
        metadata = {"name": f"volcano-{number}", **task["template"]["metadata"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        place.create({**pod, "spec": task["template"]["spec"]})
    pods = place.pods("volcano")
    assert len(pods) == 2
    judge(pods, "volcano")


def test_a_gang_waits_whole_for_its_quota(controllers: Cluster, place: Place) -> None:
    """Quota for five of these pods: of two gangs of three the second waits whole, then runs."""
    core = client.CoreV1Api(place.api)
    with namespace_in(core) as namespace:
        small = Place(controllers, place.api, namespace)
        small.create(*workloads.queues(namespace, nodes=5))
        kind = KINDS["JobSet"]
        small.start(kind, "first", True, namespace)
        small.create(kind.make("second", True, namespace))
        time.sleep(3)
        assert small.pods("second") == []
        small.cluster.kubectl("delete", _type(kind), "first", "-n", namespace)
        judge(small.running(kind, "second"), "second")


def state(place: Place) -> dict[str, Any]:
    """All that would show that something was made anew or changed."""
    kinds = [*(_type(kind) for kind in KINDS.values()), "workloads.v1beta1.kueue.x-k8s.io", "pods"]
    found: dict[str, Any] = {}
    for what in kinds:
        for one in place.listed(what):
            metadata, status = one["metadata"], one.get("status", {})
            restarts = [c["restartCount"] for c in status.get("containerStatuses", [])]
            found[metadata["uid"]] = what, metadata["name"], metadata.get("generation"), restarts
    return found


def test_afterwards_nothing_is_made_anew(place: Place) -> None:
    """A minute with all that ran here: the same objects, none changed, none restarted."""
    assert len(place.made) > 10
    before = state(place)
    time.sleep(QUIET_SECONDS)
    assert state(place) == before
    for kind, name in place.made:
        ours = place.workload(kind, name)
        twins = [n for k, n in place.made if k is kind and n[0] == "z"]
        if name.startswith("a-"):
            generation = place.workload(kind, twins[0])["metadata"].get("generation")
            assert ours["metadata"].get("generation") == generation
