"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server answers: who may ask, and how much."""

    authentication: bool = False
    """Whether a request needs an API key or a token. Without it, every caller is an admin: the
    server must then be reachable from this machine only."""
    body_bytes_max: int = 4 * 1024 * 1024
    """The limit on the body of a request."""
    webhooks: bool = True
    """Whether the server delivers webhooks."""
    webhook_allow: tuple[str, ...] = ()
    """Addresses to which webhooks may be sent although they are not public: networks
    (``10.1.0.0/16``), and hosts with ports (``hooks.internal:8443``)."""
