"""The description of the API: OpenAPI 3.1, generated from the routes."""

from __future__ import annotations

from litestar import Router
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

__all__ = ["openapi_config"]


def openapi_config() -> OpenAPIConfig:
    """Return what the description says besides the routes."""
    return OpenAPIConfig(
        title="Holdfast",
        version="1",
        description="Start runs, follow them, answer them, and look after them.",
        components=Components(
            security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}
        ),
        security=[{"bearer": []}],
        # The description is public: it has nothing of any tenant.
        openapi_router=Router("/v1/openapi", route_handlers=[], opt={"role": "public"}),
        render_plugins=[JsonRenderPlugin()],
        use_handler_docstrings=False,
    )
