"""Every route of the server."""

from holdfast.server.routes.metrics import METRICS
from holdfast.server.routes.runs import RUNS

__all__ = ["HANDLERS"]

HANDLERS = (*METRICS, *RUNS)
