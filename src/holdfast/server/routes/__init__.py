"""Every route of the server."""

from holdfast.server.routes.keys import KEYS
from holdfast.server.routes.runs import RUNS

__all__ = ["HANDLERS"]

HANDLERS = (*RUNS, *KEYS)
