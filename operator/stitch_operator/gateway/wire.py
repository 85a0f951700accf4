"""Protobuf without TensorFlow: the fields of GraphDef that its digest reads, and our own messages.

A gateway that imported TensorFlow to number a graph would be half a gigabyte larger. Field numbers
are TensorFlow's (tensorflow/core/framework/*.proto, its public wire format); a test compares each
with the installed TensorFlow. What is not listed is kept as unknown fields and read by nobody.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    name: getattr(FIELD, f"TYPE_{name.upper()}")
    for name in ("string", "bytes", "int32", "int64", "uint32", "uint64", "float", "double", "bool")
}
DATA_TYPE = "int32"
"""DataType is an open enumeration: on the wire and in Python a number."""

GRAPH: dict[str, str] = {
    "Dim": "1 int64 size; 2 string name",
    "TensorShapeProto": "2 Dim* dim; 3 bool unknown_rank",
    "TensorProto": (
        f"1 {DATA_TYPE} dtype; 2 TensorShapeProto tensor_shape; 3 int32 version_number;"
        "4 bytes tensor_content; 13 int32* half_val; 5 float* float_val; 6 double* double_val;"
        "7 int32* int_val; 8 bytes* string_val; 9 float* scomplex_val; 10 int64* int64_val;"
        "11 bool* bool_val; 12 double* dcomplex_val; 16 uint32* uint32_val;"
        "17 uint64* uint64_val; 18 bytes float8_val"
    ),
    "NameAttrList": "1 string name; 2 AttrValue% attr",
    "ListValue": (
        f"2 bytes* s; 3 int64* i; 4 float* f; 5 bool* b; 6 {DATA_TYPE}* type;"
        "7 TensorShapeProto* shape; 8 TensorProto* tensor; 9 NameAttrList* func"
    ),
    "AttrValue": (
        f"2 bytes s |; 3 int64 i |; 4 float f |; 5 bool b |; 6 {DATA_TYPE} type |;"
        "7 TensorShapeProto shape |; 8 TensorProto tensor |; 1 ListValue list |;"
        "10 NameAttrList func |; 9 string placeholder |"
    ),
    "NodeDef": "1 string name; 2 string op; 3 string* input; 4 string device; 5 AttrValue% attr",
    "ArgDef": f"1 string name; 3 {DATA_TYPE} type; 4 string type_attr",
    "OpDef": "1 string name; 2 ArgDef* input_arg; 3 ArgDef* output_arg",
    "FunctionDef": (
        "1 OpDef signature; 5 AttrValue% attr; 3 NodeDef* node_def; 4 string% ret;"
        "6 string% control_ret"
    ),
    "FunctionDefLibrary": "1 FunctionDef* function",
    "GraphDef": "1 NodeDef* node; 2 FunctionDefLibrary library",
}
"""Message -> fields: `*` repeated, `%` map from string, `|` member of the oneof `value`."""

OWN: dict[str, str] = {
    "SubmitGraph": (
        "1 string target; 2 string tf; 3 int32 abi; 4 int32 threads; 5 string* preserve;"
        "6 bool xla; 7 bool deterministic; 8 bytes graph; 9 string session;"
        "10 bool waits"
    ),
    "Outline": "8 bytes graph",
    "Event": (
        "1 string session; 2 int64 seq; 3 string graph; 4 string type; 5 string key;"
        "6 int32 exit_code; 7 string reason; 8 string detail; 9 string group; 10 int32 round;"
        "11 int32 size; 12 int32 rank; 13 int64 step; 14 int64 confirm;"
        "15 int64 margin; 16 bool final"
    ),
    "Savings": (
        "1 string session; 2 int64 seq; 3 string graph; 4 string key; 5 int64 steps;"
        "6 int64 baseline_ns; 7 int64 stitched_ns; 8 int64 lost_ns; 9 int64* interval;"
        "10 int64 pairs; 11 double devices"
    ),
}
"""Bodies of requests in protobuf; absent fields are defaults, as in JSON. An Outline is a
SubmitGraph of which only the graph is read."""

PACKAGE = "stitch.v1"


def _field(message: Any, text: str, known: frozenset[str]) -> None:
    number, kind, name, *member = text.split()
    plain = kind.rstrip("*%")
    field = message.field.add(name=name, number=int(number))
    field.label = FIELD.LABEL_OPTIONAL if plain == kind else FIELD.LABEL_REPEATED
    if member:
        field.oneof_index = 0
    if not kind.endswith("%"):
        _typed(field, plain, known)
        return
    entry = "".join(part.capitalize() for part in name.split("_")) + "Entry"
    nested = message.nested_type.add(name=entry)
    nested.options.map_entry = True
    key = nested.field.add(name="key", number=1, label=FIELD.LABEL_OPTIONAL)
    _typed(key, "string", known)
    value = nested.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL)
    _typed(value, plain, known)
    field.type = FIELD.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message.name}.{entry}"


def _typed(field: Any, kind: str, known: frozenset[str]) -> None:
    if kind in known:
        field.type, field.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = SCALARS[kind]


def _classes(tables: dict[str, str]) -> dict[str, Any]:
    """Message classes in a pool of their own: TensorFlow's may live in the same process."""
    file = descriptor_pb2.FileDescriptorProto(
        name="stitch/v1/wire.proto", package=PACKAGE, syntax="proto3"
    )
    known = frozenset(tables)
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        if "|" in fields:
            message.oneof_decl.add(name="value")
        for text in fields.replace("|", " member").split(";"):
            _field(message, text, known)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in tables
    }


MESSAGES = _classes(GRAPH | OWN)


def fields_of(message: Any) -> dict[str, Any]:
    """The fields that are set in one of OWN's messages, as JSON would have them."""
    return {
        field.name: list(value) if not isinstance(value, str | bytes | int | float) else value
        for field, value in message.ListFields()
    }
