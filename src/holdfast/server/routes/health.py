"""Routes for load balancers and orchestrators."""

from __future__ import annotations

import msgspec

from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["HEALTH"]


class Health(msgspec.Struct, frozen=True):
    """That the server answers."""

    status: str = "ok"


@route("GET", "/healthz", role="public", tag="health")
async def get_health() -> Health:
    """Say that the process answers. It does not ask the store."""
    return Health()


@route("GET", "/readyz", role="public", tag="health")
async def get_readiness(services: ServicesOf) -> Health:
    """Say whether the server should get requests.

    503 if the store did not answer within the last second, if the worker of the server cannot work,
    or if the server shuts down.
    """
    await services.readiness.check()
    return Health()


HEALTH = (get_health, get_readiness)
