"""The description of the API: OpenAPI 3.1, made from the routes.

What callers read has the schema of its form in JSON (`json_schema`), which no other generator
knows. Bodies have the schemas of their Structs, which decode them.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from litestar import Response
from litestar.enums import MediaType
from litestar.params import KwargDefinition

from holdfast.model.json_form import JsonForm, json_schema
from holdfast.model.review import Review, ReviewDecision
from holdfast.server.problems import PROBLEM_JSON, RETRY_LATER, Problem
from holdfast.server.routing import RouteDescription

__all__ = ["api_description"]

_REF = "#/components/schemas/{name}"
_PROBLEMS = {
    400: "The request is malformed.",
    401: "The request has no valid credentials.",
    403: "The caller's role or tenant does not permit it.",
    404: "There is no such thing, or it belongs to another tenant.",
    408: "The body takes too long to arrive.",
    409: "What is stored does not permit it.",
    410: "It has expired, or its run has ended.",
    411: "The request must have a Content-Length.",
    412: "The request must have the header Tus-Resumable: 1.0.0.",
    413: "The body or a value in it is too large.",
    414: "The URL is too long.",
    415: "The body is of a type that is not accepted here.",
    421: "Without authentication: the Host is neither localhost nor one of allowed_hosts.",
    422: "A value is not valid.",
    429: "Too many requests: try again after Retry-After seconds.",
    431: "The headers are too large.",
    460: "The bytes do not have the checksum in Upload-Checksum.",
    500: "The server failed. Its log says why.",
    503: "The store cannot be used now: try again after Retry-After seconds.",
}
_SUCCESSES = {
    200: "The answer.",
    201: "It is stored.",
    202: "It goes on.",
    204: "It is done.",
}
_CONSTRAINTS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
    "pattern": "pattern",
}
_NO_DEFAULT = inspect.Parameter.empty
_TEXT = {"schema": {"type": "string"}}


def api_description(routes: Iterable[RouteDescription]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    schemas: dict[str, Any] = {}
    schemas["Problem"] = _problem_schema(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(_shown_path(route.path), {})
        operations[route.method.lower()] = _operation(route, schemas)
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": "1",
            "description": "Start runs, follow them, answer them, and look after them. A caller "
            "that may act on every tenant names one in the header Holdfast-Tenant.",
        },
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {
            "schemas": {name: schemas[name] for name in sorted(schemas)},
            "responses": {_problem_name(each): _problem(each) for each in _PROBLEMS},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }
    # As it is in JSON: a default may be a tuple, which no validator takes for an array.
    return msgspec.json.decode(msgspec.json.encode(described))


def _operation(route: RouteDescription, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [
            _parameter(route, name, hint, default)
            for name, (hint, default) in route.parameters.items()
        ],
        "responses": _responses(route, schemas),
        "x-role": route.role,
    }
    if route.details:
        operation["description"] = route.details
    if route.role == "public":
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_is_optional,
            "content": {"application/json": {"schema": _schema(route.body, schemas)}},
        }
    elif route.reads:
        operation["requestBody"] = {"content": {each: {"schema": {}} for each in route.reads}}
    return operation


def _responses(route: RouteDescription, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, result in {**route.also, route.status: route.result}.items():
        answer: dict[str, Any] = {"description": _SUCCESSES.get(status, "The answer.")}
        if status != 204 and result not in (None, type(None)):
            is_json = route.media_type == MediaType.JSON
            schema = _schema(result, schemas) if is_json else _TEXT["schema"]
            answer["content"] = {route.media_type: {"schema": schema}}
        headers: dict[str, Any] = {}
        if route.etag and status == 200:
            headers["ETag"] = {"description": "Changes with the answer.", **_TEXT}
        if route.located:
            headers["Location"] = {"description": "The path of what was stored.", **_TEXT}
        if headers:
            answer["headers"] = headers
        found[str(status)] = answer
    if route.etag:
        found["304"] = {"description": "The answer is the one that If-None-Match names."}
    for status in route.problems:
        found[str(status)] = {"$ref": f"#/components/responses/{_problem_name(status)}"}
    return dict(sorted(found.items()))


def _parameter(route: RouteDescription, name: str, hint: Any, default: Any) -> dict[str, Any]:
    kind, given = hint, None
    if get_origin(hint) is Annotated:
        kind, *metadata = get_args(hint)
        given = next((each for each in metadata if isinstance(each, KwargDefinition)), None)
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    (schema,), _ = msgspec.json.schema_components(
        [next(part for part in parts if part is not type(None))]
    )
    for field, keyword in _CONSTRAINTS.items():
        if (value := getattr(given, field, None)) is not None:
            schema[keyword] = value
    in_path = f"{{{name}:" in route.path
    where = "path" if in_path else "query" if name in route.query else "header"
    is_required = in_path or default is _NO_DEFAULT
    if not is_required and default not in (None, _NO_DEFAULT):
        schema["default"] = default
    described = {"name": name, "in": where, "required": is_required, "schema": schema}
    description = getattr(given, "description", None)
    return {**described, "description": description} if description else described


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of a type, which is added to the known ones."""
    if isinstance(origin := get_origin(kind), type) and issubclass(origin, Response):
        (kind,) = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, JsonForm):
        schemas.setdefault(kind.__name__, json_schema(kind))
        return {"$ref": _REF.format(name=kind.__name__)}
    (schema,), components = msgspec.json.schema_components([kind], ref_template=_REF)
    for name, component in components.items():
        schemas.setdefault(name, component)
    return schema


def _problem_name(status: int) -> str:
    return f"Problem{status}"


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    described: dict[str, Any] = {
        "description": _PROBLEMS[status],
        "content": {PROBLEM_JSON: {"schema": schema}},
    }
    if status in RETRY_LATER:
        retry = {"description": "After how many seconds to try again.", **_TEXT}
        described["headers"] = {"Retry-After": {**retry, "required": True}}
    return described


def _problem_schema(schemas: dict[str, Any]) -> Mapping[str, Any]:
    _, components = msgspec.json.schema_components([Problem], ref_template=_REF)
    problem = components["Problem"]
    for name, kind in (("decision", ReviewDecision), ("review", Review)):
        problem["properties"][name] = _schema(kind, schemas)
    return problem


def _shown_path(path: str) -> str:
    """Return a path with the names of its parameters, without their types."""
    return "/".join(
        f"{{{part[1:].partition(':')[0]}}}" if part.startswith("{") else part
        for part in path.split("/")
    )
