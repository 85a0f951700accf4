"""The OpenAPI document of the gateway, from the records that decode its bodies.

Schemas of bodies are generated from those records, so that document and checks cannot drift apart;
what the calls answer is written here and checked by a fuzzer in the tests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from stitch_operator.gateway.problems import Problem
from stitch_operator.gateway.records import Event, Savings, SubmitGraph
from stitch_operator.reports import Workloads
from stitchcore import __version__

STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
KEY = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
KEYS = {"type": "array", "items": KEY}
TRUST = {
    "trust": {
        "type": "object",
        "required": ["public_keys", "revoked"],
        "properties": {"public_keys": {**KEYS, "maxItems": 2}, "revoked": KEYS},
    },
    "revoked": KEYS,
}
REASONS = sorted(problem.reason for problem in Problem)
RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": {**properties, **TRUST}}


SCHEMAS: dict[str, Any] = {
    "Problem": _object(
        ["reason", "what", "mend"],
        reason={"type": "string", "enum": REASONS},
        what=STRING,
        mend=STRING,
    ),
    "Ready": _object(["status", "request", "key"], status={"const": "ready"}, request=KEY, key=KEY),
    "Pending": _object(
        ["status", "request", "key", "stage", "done", "total", "retry_after"],
        status={"const": "pending"},
        request=KEY,
        key=KEY,
        stage=STRING,
        done=INTEGER,
        total=INTEGER,
        retry_after=NUMBER,
    ),
    "Refused": _object(
        ["status", "request", "key", "reason", "detail"],
        status={"const": "refused"},
        request=KEY,
        key=KEY,
        reason=STRING,
        detail=STRING,
        retry_after=NUMBER,
    ),
    "Noted": _object(
        ["status"],
        status={"enum": ["noted", "old"]},
        swap_at=INTEGER,
        group={"type": "object"},
    ),
    "Counted": _object(["status"], status={"enum": ["counted", "old"]}),
}


def _answer(text: str, schema: str, **more: Any) -> dict[str, Any]:
    reference = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"description": text, "content": {"application/json": reference}, **more}


def _problems(*problems: Problem) -> dict[str, Any]:
    everywhere = (
        *(Problem.BAD_REQUEST, Problem.UNAUTHORIZED, Problem.FORBIDDEN, Problem.RATE_LIMITED),
        *(Problem.INTERNAL, Problem.UNAVAILABLE),
    )
    made = {}
    for problem in (*everywhere, *problems):
        headers = {"headers": RETRY} if problem.value.retry_after else {}
        made[str(problem.value.status)] = _answer(problem.reason, "Problem", **headers)
    return made


STANDINGS = {
    "200": _answer("the artifact is ready: `key` is its key", "Ready"),
    "202": _answer("pending: ask again after `retry_after` seconds", "Pending", headers=RETRY),
    "409": _answer("refused, with the reason", "Refused"),
}
BODIES = (Problem.TIMEOUT, Problem.TOO_LARGE, Problem.UNSUPPORTED_MEDIA_TYPE)
KEYED = [{"name": "key", "in": "path", "required": True, "schema": KEY}]
NAME = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}
JOB = [{"name": "job", "in": "path", "required": True, "schema": NAME}]
"""A workload's name, the uid of a pod or of what made it, or a session."""


def _posted(record: str, text: str, answers: dict[str, Any], *problems: Problem) -> dict[str, Any]:
    reference = {"schema": {"$ref": f"#/components/schemas/{record}"}}
    return {
        "post": {
            "operationId": record,
            "summary": text,
            "requestBody": {"required": True, "content": {"application/json": reference}},
            "responses": {**_problems(*BODIES, *problems), **answers},
        }
    }


def _got(
    name: str,
    text: str,
    answers: dict[str, Any],
    *problems: Problem,
    parameters: list[dict[str, Any]] = KEYED,
) -> dict[str, Any]:
    responses = {**_problems(Problem.NOT_FOUND, *problems), **answers}
    told = {"operationId": name, "summary": text, "parameters": parameters}
    return {"get": {**told, "responses": responses}}


def _workloads() -> dict[str, Any]:
    since = {"name": "since", "in": "query", "schema": STRING, "description": "an answer's `next`"}
    told = _answer("what has changed since, for the release's reconciler", "Workloads")
    operation = {
        "operationId": "workloads",
        "summary": "Of all workloads: who was heard, and where graphs stand",
        "parameters": [since],
        "responses": {**_problems(), "200": told},
    }
    return {"get": operation}


TAR = {
    "description": "a flat tar of manifest.json, manifest.sig and the libraries",
    "headers": {name: {"schema": STRING} for name in ("ETag", "Stitch-Key", "Stitch-Public-Keys")},
    "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
}

HTML = {
    "description": "a page for a browser, in one file",
    "headers": {"Content-Security-Policy": {"schema": STRING}},
    "content": {"text/html": {"schema": STRING}},
}


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """OpenAPI 3.1, as plain data."""
    records = (SubmitGraph, Event, Savings, Workloads)
    _, schemas = msgspec.json.schema_components(records, ref_template="#/components/schemas/{name}")
    for schema in schemas.values():
        _ends_in_dollar(schema)
    submitted = {**STANDINGS}
    artifact = {**STANDINGS, "200": TAR, "304": {"description": "as `If-None-Match` says"}}
    noted = {"200": _answer("noted, or noted before", "Noted")}
    counted = {"200": _answer("counted, or older than what was", "Counted")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "stitch gateway", "version": __version__},
        "security": [{"token": []}],
        "paths": {
            "/v1/graphs": _posted("SubmitGraph", "Hand in a graph", submitted, Problem.NOT_FOUND),
            "/v1/graphs/{key}": _got("standing", "Where a graph stands", STANDINGS),
            "/v1/artifacts/{key}": _got("artifact", "The artifact", artifact, Problem.REVOKED),
            "/v1/artifacts/{key}/report.html": _got(
                "page", "The artifact's report", {**STANDINGS, "200": HTML}, Problem.REVOKED
            ),
            "/v1/jobs/{job}/report.html": _got(
                "jobPage", "What a job measured", {"200": HTML}, parameters=JOB
            ),
            "/v1/jobs/events": _posted("Event", "Report an event", noted, Problem.NOT_FOUND),
            "/v1/savings": _posted(
                *("Savings", "Report savings", counted),
                *(Problem.NOT_FOUND, Problem.IMPLAUSIBLE),
            ),
            "/v1/workloads": _workloads(),
        },
        "components": {
            "schemas": {**schemas, **SCHEMAS},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _ends_in_dollar(schema: Any) -> None:
    """Python's `\\Z` is not ECMAScript: there `$` means just that."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = schema["pattern"].replace(r"\Z", "$")
        for value in schema.values():
            _ends_in_dollar(value)
    elif isinstance(schema, list):
        for value in schema:
            _ends_in_dollar(value)
