"""Every route of a server, for tests that try something on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.server import ServerApp
from holdfast.server.roles import Role

__all__ = ["BODIES", "NAMED", "Route", "routes_of"]

BODIES: Mapping[tuple[str, str], Any] = {
    ("POST", "/v1/bulk"): {"action": "cancel", "everything": True},
    ("POST", "/v1/keys"): {"name": "made", "role": "viewer"},
    **{
        ("POST", f"/v1/reviews/{{id}}/{action}"): body
        for action, body in {
            "approve": {"comment": "not mine", "values": {"months": 1, "note": ""}},
            "claim": {"take_over": True},
            "comment": {"text": "not mine"},
            "edit": {"values": {"months": 1, "note": ""}},
            "link": {"expires": "1h"},
            "reassign": {"to": "eve", "force": True},
            "reject": {"comment": "not mine"},
            "release": {},
            "withdraw": {"on_behalf_of": "ana"},
        }.items()
    },
    ("POST", "/v1/runs/{id}/interrupts"): {
        "resume": [{"interruptId": "crown-jewels-sale~0123456789abcdef", "status": "cancelled"}]
    },
    ("POST", "/v1/runs"): {"graph": "orders", "input": {"item": "pen"}},
    ("PUT", "/v1/runs/{id}/budget"): {"usd": 1},
    ("POST", "/v1/runs/{id}/calls/{call}/resolve"): {"void": True},
    ("POST", "/v1/runs/{id}/cancel"): {"reason": "not mine"},
    ("POST", "/v1/runs/{id}/extend"): {"expires": "30d"},
    ("POST", "/v1/runs/{id}/retry"): {},
    ("POST", "/v1/runs/{id}/signals"): {"name": "approved", "payload": True},
    ("POST", "/v1/webhooks"): {"url": "https://hooks.example.com/"},
}
"""A valid body for each route that takes one."""


NAMED = {
    **dict.fromkeys(("id", "name", "call", "session", "token", "map"), "x"),
    "index": "1",
}
"""A value for each parameter of a path."""


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
    """Yield every route, except OPTIONS, and HEAD, which is GET without its body."""
    for route in app.litestar.routes:
        handlers: list[Any] = getattr(route, "route_handlers", None) or [route.route_handler]
        for handler in handlers:
            for method in getattr(handler, "http_methods", {"WS"}):
                if method not in ("HEAD", "OPTIONS"):
                    yield Route(method, route.path_format, handler.opt["role"])
