"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ServerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server answers: who may ask, and how much."""

    authentication: bool = False
    """Whether a request needs an API key or a token. Without it, every caller is an admin: the
    server must then be reachable from this machine only."""
    metrics_token: str | None = field(default=None, repr=False)
    """A bearer token that may read ``/metrics``, and nothing else."""
    body_bytes_max: int = 4 * 1024 * 1024
    """The limit on the body of a request."""
