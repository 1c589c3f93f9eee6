"""Every route of the server."""

from holdfast.server.routes.bulk import BULK
from holdfast.server.routes.callbacks import CALLBACKS
from holdfast.server.routes.description import DESCRIPTION
from holdfast.server.routes.fleet import FLEET
from holdfast.server.routes.graphs import GRAPHS
from holdfast.server.routes.health import HEALTH
from holdfast.server.routes.interrupts import INTERRUPTS
from holdfast.server.routes.keys import KEYS
from holdfast.server.routes.list_streams import LIST_STREAMS
from holdfast.server.routes.maps import MAPS
from holdfast.server.routes.metrics import METRICS
from holdfast.server.routes.quotas import QUOTAS
from holdfast.server.routes.reviews import REVIEWS
from holdfast.server.routes.run_actions import RUN_ACTIONS
from holdfast.server.routes.run_reads import RUN_READS
from holdfast.server.routes.runs import RUNS
from holdfast.server.routes.sessions import SESSIONS
from holdfast.server.routes.streams import STREAMS
from holdfast.server.routes.webhooks import WEBHOOKS

__all__ = ["HANDLERS"]

HANDLERS = (
    *GRAPHS,
    *RUNS,
    *RUN_READS,
    *RUN_ACTIONS,
    *MAPS,
    *REVIEWS,
    *INTERRUPTS,
    *STREAMS,
    *LIST_STREAMS,
    *SESSIONS,
    *QUOTAS,
    *BULK,
    *KEYS,
    *CALLBACKS,
    *WEBHOOKS,
    *FLEET,
    *METRICS,
    *HEALTH,
    *DESCRIPTION,
)
