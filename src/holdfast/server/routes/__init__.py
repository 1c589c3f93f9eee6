"""Every route of the server."""

from holdfast.server.routes.callbacks import CALLBACKS
from holdfast.server.routes.runs import RUNS
from holdfast.server.routes.webhooks import WEBHOOKS

__all__ = ["HANDLERS"]

HANDLERS = (*RUNS, *CALLBACKS, *WEBHOOKS)
