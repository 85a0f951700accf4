"""Cuts of regions: still convex, what they make is lowered as any region, and they hold no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.compiler.regions import outline
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Reason, Refused
from stitchcore.tensorflow.live_bytes import Chosen, limited, peak
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.memory_cuts import MOST_PARTS, Fitted, cut, depth_first, fitted
from stitchcore.tensorflow.partition import Partition, Region, operation_count, partition
from tests.tensorflow.graphs import pruned, random_graph, training_step
from tests.tensorflow.test_partition import CHOICES, contracted_is_acyclic, reenters

MEGABYTE = 2**20
SIDE = 512
"""A square of this side in float32 is one megabyte."""


def with_parts(partitioned: Partition, region: Region, count: int) -> Partition:
    others = [other for other in partitioned.regions if other.name != region.name]
    return replace(partitioned, regions=(*others, *cut(partitioned, region, count)))


def convex(partitioned: Partition) -> bool:
    numbers = range(len(partitioned.regions))
    acyclic = contracted_is_acyclic(partitioned)
    return acyclic and not any(reenters(partitioned, number) for number in numbers)


@settings(max_examples=100)
@given(CHOICES, st.integers(2, 8))
def test_parts_of_a_region_are_regions(choices: list[Any], count: int) -> None:
    whole = partition(random_graph(choices))
    for region in whole.regions:
        made = with_parts(whole, region, count)
        parts = [part for part in made.regions if part.name.startswith(f"{region.name}_")]
        members = [i for part in parts for i in part.members]
        assert sorted(members) == sorted(region.members)
        assert len(parts) <= count
        for part in parts if len(parts) > 1 else ():
            assert sum(operation_count(whole.graph, i) for i in part.members) >= 2
        assert convex(made)


@settings(max_examples=100)
@given(CHOICES)
def test_the_order_is_one_of_the_graph(choices: list[Any]) -> None:
    whole = partition(random_graph(choices))
    for region in whole.regions:
        order = depth_first(whole.graph, region.members)
        place = {i: p for p, i in enumerate(order)}
        assert set(place) == set(region.members)
        for i in order:
            before = [*(tensor.node for tensor in whole.graph.data[i]), *whole.graph.control[i]]
            assert all(place[source] < place[i] for source in before if source in place)


def test_parts_of_a_training_step_are_regions() -> None:
    step = training_step()
    whole = partition(step.definition, [step.train])
    for region in whole.regions:
        for count in (2, 4, MOST_PARTS):
            assert convex(with_parts(whole, region, count))


# ---- what they hold ----------------------------------------------------------------------------
def make(partitioned: Partition, region: Region) -> Chosen:
    function = subgraph(partitioned, region)
    module = lower(function, region.name).module
    return region, function, outline(module, host_device(), BuildOptions())


def chains(lengths: Sequence[int]) -> Partition:
    """Columns and rows, each a few kilobytes, whose product of a megabyte goes through a chain of
    operations and then to a library: TensorFlow holds few products at a time. What they all read
    makes the chains one region."""
    graph = tf.Graph()
    with graph.as_default():
        column = tf.compat.v1.placeholder(tf.float32, (SIDE, 1))
        row = tf.compat.v1.placeholder(tf.float32, (1, SIDE))
        key = tf.tanh(column) + 1.0
        results = []
        for number, length in enumerate(lengths):
            square = key * (row + float(number))
            for _ in range(length):
                square = tf.tanh(square) * 0.5
            results.append(tf.reduce_sum(tf.matmul(square, square)))
        tf.add_n(results, name="out")
    return partition(pruned(graph, ["out"]))


def stitched(whole: Partition) -> list[Chosen]:
    return [make(whole, region) for region in whole.regions]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[2] * 16, [1, 3] * 10, [1, 2, 3] * 6])
def test_cut_regions_hold_no_more_than_the_original(lengths: list[int]) -> None:
    """But for a part of two chains, and the two of a part that reads them, on each of two threads:
    the estimate's order of what is ready is not that of the cut."""
    whole = chains(lengths)
    chosen = stitched(whole)
    before = peak(whole, ()).bytes
    assert peak(whole, chosen).bytes >= before + 12 * MEGABYTE, "one launch makes them all"
    done = fitted(whole, chosen, before, make)
    assert not done.refused
    assert peak(done.partition, done.chosen).bytes <= before + 6 * MEGABYTE
    assert convex(done.partition)


def test_a_cut_says_what_it_did() -> None:
    whole = chains([2] * 8)
    chosen = stitched(whole)
    most = peak(whole, chosen).bytes
    done = fitted(whole, chosen, 7 * MEGABYTE, make)
    told, *_ = done.cuts
    assert told.region not in {region.name for region in done.partition.regions}
    assert set(told.parts) < {region.name for region in done.partition.regions}
    assert (told.before, told.after) == (most, peak(done.partition, done.chosen).bytes)
    assert f"{told.region} in {len(told.parts)} (" in str(told)


def test_what_is_allowed_is_not_cut() -> None:
    whole = chains([2] * 8)
    chosen = stitched(whole)
    assert fitted(whole, chosen, 16 * MEGABYTE, make) == Fitted(whole, tuple(chosen), (), ())


def test_no_part_is_made_where_cuts_do_not_help() -> None:
    """Each cut holds what the whole does: a block that the launches of the whole do not have."""

    def wasteful(partitioned: Partition, region: Region) -> Chosen:
        _, function, program = make(partitioned, region)
        kernels = [replace(one.kernel, scratch_bytes=64 * MEGABYTE) for one in program.launches]
        pairs = zip(program.launches, kernels, strict=True)
        launches = tuple(replace(launch, kernel=kernel) for launch, kernel in pairs)
        return region, function, replace(program, launches=launches)

    whole = chains([2] * 8)
    chosen = stitched(whole)
    done = fitted(whole, chosen, MEGABYTE, wasteful)
    assert done == Fitted(whole, tuple(chosen), (), ())


@pytest.mark.slow
def test_a_part_that_no_kernel_covers_is_left_to_the_framework() -> None:
    refused: list[str] = []

    def sparing(partitioned: Partition, region: Region) -> Chosen:
        if region.name.endswith("_1of2"):
            refused.append(region.name)
            raise Refused("instruction", Reason.UNSUPPORTED_OPCODE)
        return make(partitioned, region)

    whole = chains([2] * 8)
    done = fitted(whole, stitched(whole), 5 * MEGABYTE, sparing)
    assert refused
    names = {region.name for region, _, _ in done.chosen}
    for refusal in done.refused:
        assert refusal.reason is Reason.UNSUPPORTED_OPCODE
        assert refusal.subject in refused
        assert refusal.subject not in names


@pytest.mark.slow
def test_without_cuts_the_region_would_be_refused() -> None:
    whole = chains([2] * 40)
    chosen = stitched(whole)
    refused, before, _ = limited(whole, chosen)
    assert {refusal.reason for refusal in refused.values()} == {Reason.MEMORY}
    done = fitted(whole, chosen, before.bytes + 8 * MEGABYTE, make)
    still, _, after = limited(done.partition, done.chosen)
    assert not still
    assert after.bytes <= before.bytes + 8 * MEGABYTE
