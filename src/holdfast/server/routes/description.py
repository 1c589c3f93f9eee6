"""The route of the API's description."""

from __future__ import annotations

from typing import Any

from holdfast.server.encoding import JsonResponse
from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["DESCRIPTION"]


@route(
    "GET",
    "/v1/openapi.json",
    role="public",
    tag="api",
    etag=True,
    open=True,
    returns=dict[str, Any],
)
async def get_openapi(services: ServicesOf) -> JsonResponse[bytes]:
    """Get the description of this API, in OpenAPI 3.1."""
    return JsonResponse(services.api_description)


DESCRIPTION = (get_openapi,)
