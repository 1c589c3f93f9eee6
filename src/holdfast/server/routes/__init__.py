"""Every route of the server."""

from holdfast.server.routes.callbacks import CALLBACKS
from holdfast.server.routes.runs import RUNS

__all__ = ["HANDLERS"]

HANDLERS = (*RUNS, *CALLBACKS)
