"""Checks of requests before their handlers run: nothing is read from the store for a wrong one."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import ClientException, HTTPException
from litestar.handlers import BaseRouteHandler

from holdfast.server.routing import description_of

__all__ = ["check_request"]

_JSON = "application/json"


def check_request(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Check the names of the query parameters and the type of the body.

    A parameter that is unknown or given twice is answered with 400, a body of another type than
    JSON with 415.
    """
    described = description_of(handler)
    if described is None:
        return
    if connection.scope["query_string"]:
        seen: set[str] = set()
        for name, _ in connection.query_params.multi_items():
            if name not in described.query:
                known = ", ".join(sorted(described.query)) or "none"
                raise ClientException(
                    f"there is no query parameter {name!r:.80}; there are: {known}"
                )
            if name in seen and name not in described.repeatable:
                raise ClientException(f"the query parameter {name} must be given once")
            seen.add(name)
    if described.body is not None:
        _check_body_type(connection)


def _check_body_type(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    given = connection.headers.get("content-type")
    if given is None:
        has_body = connection.headers.get("content-length", "0") != "0"
        if not has_body and "transfer-encoding" not in connection.headers:
            return
    elif given == _JSON or given.partition(";")[0].strip().lower() == _JSON:
        return
    raise HTTPException(
        f"the body must be {_JSON}, got {given or 'no Content-Type'!s:.80}", status_code=415
    )
