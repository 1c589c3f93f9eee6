"""The roles of callers, from the weakest to the strongest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

from litestar.handlers import BaseRouteHandler

from holdfast.errors import InvalidRequest

__all__ = ["ROLES", "Role", "check_roles", "includes", "role_of"]

Role: TypeAlias = Literal["public", "viewer", "reviewer", "operator", "admin"]
"""What a route needs. A role may do what the weaker ones may; ``public`` needs no credentials."""

ROLES: tuple[Role, ...] = get_args(Role)


def includes(held: Role, needed: Role) -> bool:
    """Return whether a caller with the role ``held`` may do what needs the other role."""
    return ROLES.index(held) >= ROLES.index(needed)


def role_of(handler: BaseRouteHandler) -> Role:
    """Return the role that a route needs."""
    # Litestar itself answers OPTIONS, with the methods of a path.
    return "public" if _is_options(handler) else handler.opt["role"]


def check_roles(routes: Iterable[Any]) -> None:
    """Check that every route names its role, WebSockets included.

    Raises:
        InvalidRequest: one does not; without it, nothing would guard the route.
    """
    for route in routes:
        handlers = getattr(route, "route_handlers", None) or [route.route_handler]
        for handler in handlers:
            if not _is_options(handler) and handler.opt.get("role") not in ROLES:
                raise InvalidRequest(f"the route {route.path} must name its role")


def _is_options(handler: BaseRouteHandler) -> bool:
    return getattr(handler, "http_methods", None) == {"OPTIONS"}
