"""A step of replicas: its collectives stay outside regions, and no region makes one wait.

`graphs/replicas.pb.xz` is what tests/inject/scripts/replicas.py hands in with 4096 bytes of
gradients in each collective: three variables' gradients in two collectives.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from tensorflow.core.framework import graph_pb2

from stitchcore.errors import Reason
from stitchcore.tensorflow.partition import Partition, partition

CAPTURED = Path(__file__).parent / "graphs" / "replicas.pb.xz"


@pytest.fixture(scope="module")
def cut() -> Partition:
    data = lzma.decompress(CAPTURED.read_bytes())
    return partition(graph_pb2.GraphDef.FromString(data))


def collectives(cut: Partition) -> list[int]:
    return [i for i, node in enumerate(cut.graph.nodes) if node.op == "CollectiveReduceV2"]


def behind(cut: Partition, node: int) -> set[int]:
    """What `node` waits for, by search."""
    reached, stack = {node}, [node]
    while stack:
        i = stack.pop()
        for source in [tensor.node for tensor in cut.graph.data[i]] + list(cut.graph.control[i]):
            if source not in reached:
                reached.add(source)
                stack.append(source)
    return reached


def test_collectives_are_in_no_region(cut: Partition) -> None:
    numbers = collectives(cut)
    assert len(numbers) == 2 and len(cut.regions) > 4
    assert not set(numbers) & {i for region in cut.regions for i in region.members}
    reasons = {refusal.subject: refusal.reason for refusal in cut.refusals}
    assert {reasons[cut.graph.nodes[i].name] for i in numbers} == {Reason.COLLECTIVE}


def test_no_region_makes_a_collective_wait(cut: Partition) -> None:
    """A collective waits for all of a region's members or for none, so for nothing new."""
    for collective in collectives(cut):
        waits = behind(cut, collective)
        for region in cut.regions:
            assert set(region.members) <= waits or not set(region.members) & waits
    one, other = sorted(collectives(cut), key=lambda i: len(behind(cut, i)))
    assert one in behind(cut, other) and len(behind(cut, other) - behind(cut, one)) > 1
