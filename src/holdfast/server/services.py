"""What the routes of one server share."""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, TypeAlias, cast

from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler

from holdfast.access.sessions import Session
from holdfast.app import Holdfast
from holdfast.errors import (
    Forbidden,
    InvalidName,
    InvalidRequest,
    Unauthenticated,
    UnknownGraph,
)
from holdfast.model.api_key import ANY_TENANT
from holdfast.model.names import validated_tenant
from holdfast.model.program import Program
from holdfast.server.bulk_runner import BulkRunner
from holdfast.server.caller import Identity, Requester
from holdfast.server.credentials import Credentials
from holdfast.server.metrics import ServerMetrics
from holdfast.server.options import Rate, ServerOptions
from holdfast.server.readiness import Readiness
from holdfast.server.roles import includes, role_of
from holdfast.server.session_cookie import session_text
from holdfast.server.streams.registry import Streams
from holdfast.server.streams.sockets import subprotocol_key
from holdfast.server.throttling import Throttle

__all__ = ["OPENED", "Connection", "Services", "ServicesOf", "address_of"]

Connection = ASGIConnection[Any, Any, Any, Any]

# Names the tenant of a request whose caller may act on every tenant.
_TENANT_HEADER = "holdfast-tenant"
OPENED = "holdfast.opened"
"""Where a request's scope has the callers for whom it counts as open: a list."""
# A system that repeats a callback does so every few seconds at most.
_CALLBACK_RATE = Rate(3, 30)
# How often one address of a review may be opened or posted to.
_REVIEW_LINK_RATE = Rate(5, 60)
_LOCAL_PERSON = "local"
_EVERYONE = Identity("anonymous", ANY_TENANT, "admin", person="anonymous")


class Services:
    """The Holdfast, the graphs and the options of one server."""

    def __init__(self, hf: Holdfast, graphs: tuple[Program, ...], options: ServerOptions) -> None:
        self.hf = hf
        self.graphs = graphs
        self.options = options
        self.bulk = BulkRunner(hf)
        """Carries out bulk jobs."""
        self.api_description = b""
        """The OpenAPI document of this server, in JSON."""
        self._credentials = Credentials(hf, options)
        self.metrics = ServerMetrics(hf, overview=hf.fleet.overview)
        self.callback_rates = Throttle(_CALLBACK_RATE, hf.clock)
        """The rates of posts to the addresses of callbacks, by the digest of the token."""
        self.review_link_rates = Throttle(_REVIEW_LINK_RATE, hf.clock)
        """The rates of requests to the addresses of reviews, by the digest of the token."""
        self.streams = Streams(options)
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
            TooManyRequests: the caller sends too many requests.
        """
        needed = role_of(handler)
        if needed == "public" or self._has_metrics_token(connection, handler):
            return
        identity = await self._identify(connection, handler)
        if not includes(identity.role, needed):
            raise Forbidden(f"this needs the role {needed}, got {identity.role}")
        tenant = self._tenant(connection, identity)
        if self.options.authentication:
            self._credentials.open_request(identity.caller)
            cast("dict[str, Any]", connection.scope).setdefault(OPENED, []).append(identity.caller)
        connection.scope["user"] = Requester(self.hf, tenant, identity)

    def release(self, scope: MutableMapping[str, Any]) -> None:
        """Count a request as ended, if `authorize` admitted it."""
        for caller in scope.get(OPENED, ()):
            self._credentials.close_request(caller)

    async def still_valid(self, requester: Requester) -> bool:
        """Return whether the credentials of a request are still valid, for streams that stay open.

        Ask every few seconds.

        Raises:
            StoreError: the store cannot say.
        """
        if not self.options.authentication:
            return True
        try:
            await self._credentials.identify(requester.identity.credential)
        except Unauthenticated:
            return False
        return True

    def _has_metrics_token(self, connection: Connection, handler: BaseRouteHandler) -> bool:
        expected = self.options.metrics_token
        if expected is None or handler.opt.get("token") != "metrics":
            return False
        given = connection.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {expected}".encode())

    async def _identify(self, connection: Connection, handler: BaseRouteHandler) -> Identity:
        # A cookie opens pages only: other routes need no protection from forms of other sites.
        is_page = "page" in handler.opt
        if not self.options.authentication:
            return await self._anyone(connection) if is_page else _EVERYONE
        header = _single_header(connection, "authorization")
        if header is None and is_page and (session := await self._session(connection)) is not None:
            return await self._credentials.admit_session(session.key)
        if header is None and (offered := subprotocol_key(connection)) is not None:
            header = f"Bearer {offered}"
        return await self._credentials.admit(header, address=address_of(connection))

    async def sign_in(self, key: str, *, address: str) -> tuple[Identity, str]:
        """Return whom an API key stands for, and the text of a session with it.

        Raises:
            Unauthenticated: the key is not valid.
            TooManyRequests: the address has tried too many keys that are not valid.
        """
        identity = await self._credentials.admit_key(key, address=address)
        return identity, await self.hf.sessions.open(Session(identity.name.partition(":")[2], ""))

    def is_behind_https(self, connection: Connection) -> bool:
        """Return whether browsers use https, perhaps with a proxy in front of this server."""
        public_url = self.hf.callbacks.public_url or ""
        return connection.scope["scheme"] == "https" or public_url.startswith("https://")

    async def _session(self, connection: Connection) -> Session | None:
        text = session_text(connection, secure=self.is_behind_https(connection))
        return None if text is None else await self.hf.sessions.read(text)

    async def _anyone(self, connection: Connection) -> Identity:
        """Return the person who uses a server without authentication, by the name they chose."""
        session = await self._session(connection)
        person = session.person if session is not None else ""
        return replace(_EVERYONE, person=person or _LOCAL_PERSON)

    def _tenant(self, connection: Connection, identity: Identity) -> str:
        asked = _single_header(connection, _TENANT_HEADER)
        if identity.tenant == ANY_TENANT:
            return self.hf.tenant if asked is None else _valid_tenant(asked)
        if asked not in (None, identity.tenant):
            raise Forbidden("these credentials belong to another tenant")
        return identity.tenant


def address_of(connection: Connection) -> str:
    """Return the address of a caller, by which failed attempts are counted."""
    return connection.client.host if connection.client else ""


def _valid_tenant(asked: str) -> str:
    if asked == ANY_TENANT:
        raise InvalidName(f"{_TENANT_HEADER} must name one tenant", field=_TENANT_HEADER)
    return validated_tenant(asked)


def _single_header(connection: Connection, name: str) -> str | None:
    """Return a header that may be sent once: two values could mean two things to two programs."""
    values = connection.headers.getall(name, [])
    if len(values) > 1:
        raise InvalidRequest(f"the header {name} must be sent once", field=name)
    return values[0] if values else None


ServicesOf: TypeAlias = NamedDependency[Services]
"""The type of a handler's argument ``services``."""
