"""The fuzzer of strangers' graphs finds what is planted, reproduces, and finds nothing in ours."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from tests import tiers
from tests.fuzz import graphs as fuzz
from tests.fuzz.mutate_graphs import mutate

CAPTURED = Path(__file__).parents[1] / "tensorflow" / "graphs"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("graphs")
    made = []
    for source in sorted(CAPTURED.glob("*.xz")):
        path = folder / source.stem
        path.write_bytes(lzma.decompress(source.read_bytes()))
        made.append(path)
    assert made
    return made


def test_a_graph_is_a_function_of_seed_and_number(graphs: list[Path]) -> None:
    data = [path.read_bytes() for path in graphs]
    assert fuzz.one(1, 5, data) == fuzz.one(1, 5, data)
    assert len({fuzz.one(1, n, data) for n in range(50)}) == 50


@pytest.mark.slow
@pytest.mark.parametrize("count", tiers.nightly_but(150, of=(150, 1000)))
def test_many_graphs_are_judged_without_a_finding(count: int, graphs: list[Path]) -> None:
    findings = fuzz.run(7, 0, count, graphs)
    assert not findings.problems
    assert sum(findings.outcomes.values()) == count
    assert findings.memory < fuzz.MEMORY
    assert findings.outcomes["partitioned"] > count / 20, "the mutations leave enough to cut"
    assert len(findings.outcomes) >= 4


@pytest.mark.parametrize(
    "number", [7987, 9633, 33362, 49010, 63567, 79859, 80566, 85359, 116848, 119949, 124608,
               148865, 174738, 184009, 190597]
)  # fmt: skip
def test_what_long_runs_have_found_is_refused_or_cut(number: int, graphs: list[Path]) -> None:
    """Of seed 2026: Fill with sizes that are no vector, shapes of another rank than is inferred."""
    data = [path.read_bytes() for path in graphs]
    assert fuzz.judge(fuzz.one(2026, number, data))


PLANTED = """
import os, sys, time
from tests.fuzz import graphs as fuzz
def judge(data):
    global count
    count += 1
    if count == 3: raise IndexError("planted")
    if count == 5 and sys.argv[2].find('"first": 0') > 0: os.abort()
    return "fine"
count = 0
fuzz.judge = judge
raise SystemExit(fuzz.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_exceptions_and_deaths_are_findings(
    graphs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "planted.py"
    program.write_text(PLANTED)
    monkeypatch.setattr(fuzz, "CHILD", (str(program),))
    findings = fuzz.run(1, 0, 10, graphs)
    assert [number for number, _, _ in findings.problems] == [2, 4, 7]
    assert "planted" in findings.problems[0][2]
    assert "ended with" in findings.problems[1][1]
    assert findings.outcomes["fine"] == 7


def test_raw_bytes_and_structure_are_both_mutated(graphs: list[Path]) -> None:
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import graph_pb2

    data, broken = graphs[0].read_bytes(), 0
    for seed in range(60):
        made = mutate(np.random.default_rng(seed), data)
        try:
            graph_pb2.GraphDef.FromString(made)
        except DecodeError:
            broken += 1
    assert 0 < broken < 30


def test_what_is_no_file_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        fuzz.main([str(tmp_path)])
    assert caught.value.code == 2
