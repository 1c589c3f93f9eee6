"""The route for Prometheus."""

from __future__ import annotations

from typing import Any, cast

from litestar import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from holdfast.errors import Forbidden
from holdfast.server.caller import ANY_TENANT, Requester
from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["METRICS"]

# The response adds the charset itself.
_TEXT = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")


@route(
    "GET",
    "/metrics",
    role="operator",
    tag="service",
    media_type="text/plain",
    opt={"token": "metrics"},
)
async def get_metrics(request: Request[Any, Any, Any], services: ServicesOf) -> Response[bytes]:
    """Get the figures of this process in Prometheus' text format.

    It needs the option metrics_token as a bearer token, or an operator of all tenants.
    """
    scope = cast("dict[str, Any]", request.scope)
    requester: object = scope.get("user")  # None if the token admitted the request
    if isinstance(requester, Requester) and requester.identity.tenant != ANY_TENANT:
        raise Forbidden("metrics are those of all tenants: use credentials of the tenant *")
    return Response(services.metrics.page(), media_type=_TEXT)


METRICS = (get_metrics,)
