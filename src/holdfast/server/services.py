"""What the routes of one server share."""

from __future__ import annotations

from typing import Any, TypeAlias

from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler

from holdfast.app import Holdfast
from holdfast.errors import Forbidden, Unauthenticated, UnknownGraph
from holdfast.model.program import Program
from holdfast.server.caller import ANY_TENANT, Identity, Requester
from holdfast.server.options import ServerOptions
from holdfast.server.readiness import Readiness
from holdfast.server.roles import Role, includes

__all__ = ["Services", "ServicesOf"]

Connection = ASGIConnection[Any, Any, Any, Any]

# Names the tenant of a request whose caller may act on every tenant.
_TENANT_HEADER = "holdfast-tenant"
_EVERYONE = Identity("anonymous", ANY_TENANT, "admin")


class Services:
    """The Holdfast, the graphs and the options of one server."""

    def __init__(self, hf: Holdfast, graphs: tuple[Program, ...], options: ServerOptions) -> None:
        self.hf = hf
        self.graphs = graphs
        self.options = options
        self.readiness = Readiness(hf)

    def graph(self, name: str) -> Program:
        """Return the newest version of a graph that this server has.

        Raises:
            UnknownGraph: it has no such graph.
        """
        named = [graph for graph in self.graphs if graph.name == name]
        if not named:
            known = ", ".join(sorted({graph.name for graph in self.graphs}))
            raise UnknownGraph(f"this server has no graph {name!r:.80}; it has: {known}")
        return max(named, key=lambda graph: graph.version)

    async def authorize(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Admit a request, or refuse it, before its body is read; remember who makes it.

        Raises:
            Unauthenticated: it has no valid credentials.
            Forbidden: the caller's role or tenant does not permit it.
        """
        needed: Role = handler.opt["role"]
        if needed == "public":
            return
        identity = await self._identify(connection)
        if not includes(identity.role, needed):
            raise Forbidden(f"this needs the role {needed}, got {identity.role}")
        tenant = self._tenant(connection, identity)
        connection.scope["user"] = Requester(self.hf, tenant, identity)

    async def _identify(self, connection: Connection) -> Identity:
        if not self.options.authentication:
            return _EVERYONE
        raise Unauthenticated

    def _tenant(self, connection: Connection, identity: Identity) -> str:
        asked = connection.headers.get(_TENANT_HEADER)
        if identity.tenant == ANY_TENANT:
            return self.hf.tenant if asked is None else asked
        if asked not in (None, identity.tenant):
            raise Forbidden("these credentials belong to another tenant")
        return identity.tenant


ServicesOf: TypeAlias = NamedDependency[Services]
"""The type of a handler's argument ``services``."""
