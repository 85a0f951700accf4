"""Protobuf without TensorFlow reads graphs as TensorFlow does; the OpenAPI document holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.pytest import from_fixture
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    missing_required_header,
    positive_data_acceptance,
)

from stitch_operator.gateway.openapi import document
from stitch_operator.gateway.wire import GRAPH, MESSAGES
from tests.operator.gateway.support import gateway, graph

PLACES = {
    "Dim": "tensor_shape_pb2.TensorShapeProto.Dim",
    "TensorShapeProto": "tensor_shape_pb2.TensorShapeProto",
    "TensorProto": "tensor_pb2.TensorProto",
    "NameAttrList": "attr_value_pb2.NameAttrList",
    "ListValue": "attr_value_pb2.AttrValue.ListValue",
    "AttrValue": "attr_value_pb2.AttrValue",
    "NodeDef": "node_def_pb2.NodeDef",
    "ArgDef": "op_def_pb2.OpDef.ArgDef",
    "OpDef": "op_def_pb2.OpDef",
    "FunctionDef": "function_pb2.FunctionDef",
    "FunctionDefLibrary": "function_pb2.FunctionDefLibrary",
    "GraphDef": "graph_pb2.GraphDef",
}
assert set(PLACES) == set(GRAPH)


@pytest.mark.parametrize("name", sorted(PLACES))
def test_field_numbers_and_types_are_tensorflows(name: str) -> None:
    pytest.importorskip("tensorflow", reason="make installs it: pip install tensorflow-cpu")
    import importlib

    module, _, path = PLACES[name].partition(".")
    theirs = importlib.import_module(f"tensorflow.core.framework.{module}")
    for part in path.split("."):
        theirs = getattr(theirs, part)
    by_number = {field.number: field for field in theirs.DESCRIPTOR.fields}
    enumeration = 14
    for field in MESSAGES[name].DESCRIPTOR.fields:
        other = by_number[field.number]
        assert field.name == other.name
        assert field.is_repeated == other.is_repeated
        number = 5 if other.type == enumeration else other.type  # DataType: a varint as int32 is
        assert field.type == number


def test_digests_are_those_of_tensorflows_own_messages() -> None:
    pytest.importorskip("tensorflow", reason="make installs it: pip install tensorflow-cpu")
    import tensorflow as tf
    from tensorflow.core.framework import graph_pb2

    from stitchcore.inject.digest import number

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        weights = tf.constant([[0.5, -1.5], [2.0, 3.0]])
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.softmax(x @ weights), lambda: y * 2)

    shape = tf.TensorSpec([None, 2], tf.float32)
    made = step.get_concrete_function(shape, shape).graph.as_graph_def(add_shapes=True)
    data = made.SerializeToString()
    ours = MESSAGES["GraphDef"].FromString(data)
    keep = [made.node[-1].name]
    assert number(ours, keep) == number(graph_pb2.GraphDef.FromString(data), keep)


@pytest.mark.slow
def test_a_gateway_imports_no_tensorflow() -> None:
    code = (
        "import sys, stitch_operator.gateway.__main__;"
        "print([m for m in sys.modules if m.partition('.')[0] in ('tensorflow', 'numpy')])"
    )
    paths = [str(Path(one).resolve()) for one in (".", "operator", "worker")]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(paths), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with gateway(tmp_path_factory.mktemp("fuzzed")) as running:
        running.submit(graph())
        yield running


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> BaseSchema:
    request.node._nodeid = request.node.nodeid  # schemathesis 4.32 asks for what pytest 9 has not
    return schemathesis.openapi.from_dict(document())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@from_fixture("schema").parametrize()  # in the test, not in every process that collects it
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
                           HealthCheck.filter_too_much],
)  # fmt: skip
def test_every_answer_to_any_request_is_in_the_document(case, fuzzed) -> None:  # type: ignore[no-untyped-def]
    case.headers = {**(case.headers or {}), **fuzzed.as_("alice")}
    response = fuzzed.client.request(**case.as_transport_kwargs())
    assert response.status_code != 500
    # the token is always sent, and what is said without one is asked in test_app
    excluded = [missing_required_header, ignored_auth]
    if case.path == "/v1/graphs":
        excluded.append(positive_data_acceptance)  # not all bytes are a graph
    case.validate_response(response, excluded_checks=excluded)
