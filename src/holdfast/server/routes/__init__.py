"""Every route of the server."""

from holdfast.server.routes.bulk import BULK
from holdfast.server.routes.callbacks import CALLBACKS
from holdfast.server.routes.description import DESCRIPTION
from holdfast.server.routes.document_workflows import DOCUMENT_WORKFLOWS
from holdfast.server.routes.documents import DOCUMENTS
from holdfast.server.routes.fleet import FLEET
from holdfast.server.routes.graphs import GRAPHS
from holdfast.server.routes.health import HEALTH
from holdfast.server.routes.interrupts import INTERRUPTS
from holdfast.server.routes.keys import KEYS
from holdfast.server.routes.list_streams import LIST_STREAMS
from holdfast.server.routes.metrics import METRICS
from holdfast.server.routes.projects import PROJECTS
from holdfast.server.routes.quotas import QUOTAS
from holdfast.server.routes.reviews import REVIEWS
from holdfast.server.routes.run_actions import RUN_ACTIONS
from holdfast.server.routes.run_reads import RUN_READS
from holdfast.server.routes.runs import RUNS
from holdfast.server.routes.search import SEARCH
from holdfast.server.routes.sessions import SESSIONS
from holdfast.server.routes.streams import STREAMS
from holdfast.server.routes.uploads import UPLOADS
from holdfast.server.routes.webhooks import WEBHOOKS

__all__ = ["HANDLERS"]

HANDLERS = (
    *GRAPHS,
    *RUNS,
    *RUN_READS,
    *RUN_ACTIONS,
    *REVIEWS,
    *INTERRUPTS,
    *PROJECTS,
    *DOCUMENTS,
    *DOCUMENT_WORKFLOWS,
    *UPLOADS,
    *SEARCH,
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
