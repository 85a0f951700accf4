"""Why operations of a job are not in one kernel, told from a report made for the purpose."""

from __future__ import annotations

import msgspec
import pytest

from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.fusion.cost import cost
from stitchcore.fusion.text import parse_plan, plan_text
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from stitchcore.optimize import explain
from stitchcore.report.reasons import MEANINGS, meaning
from stitchcore.report.schema import Report, ReportModule, ReportNode, ReportRegion

TARGET = "cpu-x86-64-v3"


def node(name: str, kernel: int, region: int, inputs: tuple[int, ...] = ()) -> ReportNode:
    written = name if region >= 0 else ""
    return ReportNode(
        f"call/{name}", "Mul", kernel, "", "", inputs, written, region, level=max(region, 0)
    )


REGIONS = (
    ReportRegion("r0", "a", 2, True, first_kernel=0),
    ReportRegion("r1", "b", 2, True, first_kernel=1),
)
NODES = (
    node("model/dense/mul", 0, 0),
    node("model/dense/add", 0, 0, (0,)),
    ReportNode("call/model/MatMul", "MatMul", -1, "library_call", "", (1,)),
    node("model/out/mul", 1, 1, (2,)),
    node("loss/mul", 2, 1, (3,)),
)
REPORT = Report("graph", TARGET, NODES, regions=REGIONS)


def test_parts_of_a_region_that_was_cut_for_memory() -> None:
    parts = tuple(msgspec.structs.replace(region, cut_from="r7_Add") for region in REGIONS)
    told = explain.explain(msgspec.structs.replace(REPORT, regions=parts), {}, 0, 3)
    assert told.reason == Reason.MEMORY.value
    assert "r7_Add is launched in parts" in told.detail
    one = (parts[0], msgspec.structs.replace(parts[1], cut_from="r8_Add"))
    told = explain.explain(msgspec.structs.replace(REPORT, regions=one), {}, 0, 3)
    assert told.reason != Reason.MEMORY.value


def at(name: str) -> int:
    (found,) = explain.find(REPORT, name)
    return found


def test_operations_are_found_as_the_script_calls_them() -> None:
    assert explain.find(REPORT, "model/dense/mul") == [0]
    assert explain.find(REPORT, "call/model/dense/mul") == [0]
    assert explain.find(REPORT, "dense/mul") == [0]
    assert explain.find(REPORT, "mul") == [0, 3, 4]
    assert explain.find(REPORT, "model/mul") == [0, 3], "parts in order"
    assert explain.find(REPORT, "nowhere") == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("dense/mull", "dense/mul"), ("Model/Dense/Add", "model/dense/add"), ("matmul", "MatMul")],
)
def test_near_names_are_offered(wrong: str, right: str) -> None:
    assert any(name.endswith(right) for name in explain.near(REPORT, wrong))


def test_one_kernel_holds_both() -> None:
    assert explain.explain(REPORT, {}, 0, 1).together


def test_an_operation_in_no_kernel_gives_its_reason() -> None:
    found = explain.explain(REPORT, {}, 0, at("MatMul"))
    assert not found.together
    assert found.reason == "library_call"


def test_what_stands_between_two_regions_is_named() -> None:
    for pair in ((0, 3), (3, 0)):
        found = explain.explain(REPORT, {}, *pair)
        assert found.reason == "cycle"
        assert found.path == ("call/model/MatMul",)
        assert "library_call" in found.detail
        assert any("level" in told for told in found.differences)


def changed(position: int, **fields: object) -> Report:
    """The report without what stands between, and one node changed."""
    nodes = list(NODES)
    nodes[2] = msgspec.structs.replace(nodes[2], inputs=())
    nodes[3] = msgspec.structs.replace(nodes[3], level=0)
    nodes[position] = msgspec.structs.replace(nodes[position], **fields)
    return msgspec.structs.replace(REPORT, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("device", "/device:GPU:0", "device any and /device:GPU:0"),
        ("frame", "/while", "while loop none and /while"),
        ("branches", ("runs only where p is true",), "runs only where p is true"),
        ("level", 4, "level 0 and 4"),
        ("small", True, "scalars"),
    ],
)
def test_what_regions_share_is_told(field: str, value: object, told: str) -> None:
    found = explain.explain(changed(3, **{field: value}), {}, 0, 3)
    assert any(told in difference for difference in found.differences)


def test_regions_that_nothing_joins() -> None:
    found = explain.explain(changed(0), {}, 0, 3)
    assert found.reason == "not_profitable"
    assert "nothing joins" in found.detail
    assert not found.differences


def test_kernels_of_one_region_are_told_by_the_plans_rules() -> None:
    """A plan of two kernels, one waiting for what waits for the other, is asked again."""
    text = (
        "HloModule m\n\nENTRY main {\n  a = f32[64,64] parameter(0)\n"
        "  b = f32[64,64] tanh(a)\n"
        "  c = f32[64,64] dot(b, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  d = f32[64,64] exponential(c)\n  ROOT e = f32[64,64] multiply(d, b)\n}\n"
    )
    module = parse(text)
    kernels = "kernel\n  instructions tanh.1\nkernel\n  instructions exponential.3 multiply.4\n"
    plan = parse_plan(kernels, module, DEVICES[TARGET], cost, "plan", "stored").plan
    modules = {"b": ReportModule(print_module(module), plan_text(plan), "exhaustive")}
    found = explain.explain(REPORT, modules, 3, 4)
    assert found.reason == "cycle"
    assert "dot" in found.detail
    assert "r1" in found.detail
    without = explain.explain(REPORT, {}, 3, 4)
    assert "does not hold the plan" in without.detail


def test_every_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Reason)
    assert all(meaning(reason.value) for reason in Reason)
    assert meaning("source") == ""
