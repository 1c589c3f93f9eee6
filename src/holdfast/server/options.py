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
    heartbeat_seconds: float = 15.0
    """How long a stream may be silent before it sends a heartbeat."""
    stream_messages_max: int = 4096
    """How many messages of a run the server keeps for its followers. A follower that is further
    behind than the others by more than that has to connect again."""
    stream_bytes_max: int = 4 * 1024 * 1024
    """How many bytes of messages of a run the server keeps for its followers."""
    list_poll_seconds: float = 2.0
    """How often the server reads a list of runs that is followed."""
    followers_max: int = 10_000
    """How many streams the server has open at a time."""
