"""Every route of the server."""

from holdfast.server.routes.fleet import FLEET
from holdfast.server.routes.health import HEALTH
from holdfast.server.routes.runs import RUNS

__all__ = ["HANDLERS"]

HANDLERS = (*RUNS, *FLEET, *HEALTH)
