"""Every route of a server, for tests that try something on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.server import ServerApp
from holdfast.server.roles import Role

__all__ = ["BODIES", "Route", "routes_of"]

BODIES: Mapping[tuple[str, str], Any] = {
    ("POST", "/v1/keys"): {"name": "made", "role": "viewer"},
}
"""A valid body for each route that takes one."""


class Route(NamedTuple):
    """A method of a path, or a WebSocket (``WS``), and the role that it needs."""

    method: str
    path: str
    role: Role

    def filled(self, parameters: Mapping[str, str]) -> str:
        """Return the path with values for its parameters."""
        return self.path.format_map(parameters)

    @property
    def body(self) -> Any:
        return BODIES.get((self.method, self.path))


def routes_of(app: ServerApp) -> Iterator[Route]:
    """Yield every route, except what only answers OPTIONS."""
    for route in app.litestar.routes:
        handlers: list[Any] = getattr(route, "route_handlers", None) or [route.route_handler]
        for handler in handlers:
            for method in getattr(handler, "http_methods", {"WS"}):
                if method != "OPTIONS":
                    yield Route(method, route.path_format, handler.opt["role"])
