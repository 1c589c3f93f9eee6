"""Every route of the server."""

from holdfast.server.routes.runs import RUNS
from holdfast.server.routes.streams import STREAMS

__all__ = ["HANDLERS"]

HANDLERS = (*RUNS, *STREAMS)
