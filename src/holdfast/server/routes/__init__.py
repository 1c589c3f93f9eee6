"""Every route of the server."""

from holdfast.server.routes.list_streams import LIST_STREAMS
from holdfast.server.routes.runs import RUNS
from holdfast.server.routes.streams import STREAMS

__all__ = ["HANDLERS"]

HANDLERS = (*RUNS, *STREAMS, *LIST_STREAMS)
