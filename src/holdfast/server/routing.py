"""Routes: every one names the role that it needs and the problems that it may answer with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from litestar.enums import MediaType
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec

from holdfast.server.problems import PROBLEM_JSON, Problem
from holdfast.server.roles import Role

__all__ = ["route"]

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

# What a route may answer with, besides its result, whatever it does.
_ALWAYS = (400, 401, 403, 404, 405, 406, 413, 415, 422, 429, 500, 503)
_DESCRIPTIONS = {
    400: "The request is malformed.",
    401: "The request has no valid credentials.",
    403: "The caller's role or tenant does not permit it.",
    404: "There is no such thing, or it belongs to another tenant.",
    405: "The path has no such method.",
    406: "The server cannot answer in the form that the request accepts.",
    409: "What is stored does not permit it.",
    410: "It has expired, or its run has ended.",
    413: "The body or a value in it is too large.",
    415: "The body is not JSON.",
    422: "A value is not valid.",
    429: "Too many requests: try again after Retry-After seconds.",
    500: "The server failed. Its log says why.",
    503: "The store cannot be used now: try again after Retry-After seconds.",
}


def route(
    method: Method,
    path: str,
    *,
    role: Role,
    tag: str,
    status: int = 200,
    conflicts: bool = False,
    gone: bool = False,
    also: Mapping[int, Any] | None = None,
    media_type: str = MediaType.JSON,
    **options: Any,
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Make a handler of a function. Its first docstring line is the summary in the API.

    ``conflicts`` says that it may answer with 409, ``gone`` that it may answer with 410.
    ``also`` has other statuses of success, with the types of their answers.
    """
    statuses = (*_ALWAYS, *((409,) if conflicts else ()), *((410,) if gone else ()))

    def decorate(function: Callable[..., Any]) -> HTTPRouteHandler:
        summary, _, rest = (function.__doc__ or "").strip().partition("\n")
        return HTTPRouteHandler(
            path,
            http_method=method,
            status_code=status,
            media_type=media_type,
            opt={"role": role},
            operation_id=function.__name__,
            summary=summary.rstrip("."),
            description=" ".join(rest.split()) or None,
            tags=[tag],
            raises=None,
            responses={
                each: ResponseSpec(kind, generate_examples=False)
                for each, kind in (also or {}).items()
            }
            | {
                each: ResponseSpec(
                    Problem,
                    generate_examples=False,
                    description=_DESCRIPTIONS[each],
                    media_type=PROBLEM_JSON,  # pyright: ignore[reportArgumentType]
                )
                for each in sorted(statuses)
            },
            **options,
        )(function)

    return decorate
