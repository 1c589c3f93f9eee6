"""The blocking API: ``from holdfast.sync import Holdfast``, for programs without an event loop.

An event loop in a thread of its own carries out each call, and the caller blocks until it has
answered. Several threads may share one `Holdfast`. Calls inside a running event loop work but block
that loop: use the async API there.
"""

from holdfast.portal import BlockingStream
from holdfast.sync.api_keys import ApiKeys
from holdfast.sync.app import Holdfast
from holdfast.sync.callbacks import Callbacks
from holdfast.sync.documents import Documents
from holdfast.sync.fleet import Fleet
from holdfast.sync.handle import RunHandle
from holdfast.sync.maps import MapHandle
from holdfast.sync.projects import Projects
from holdfast.sync.reviews import Reviews
from holdfast.sync.webhooks import Webhooks
from holdfast.sync.worker import Worker

__all__ = [
    "ApiKeys",
    "BlockingStream",
    "Callbacks",
    "Documents",
    "Fleet",
    "Holdfast",
    "MapHandle",
    "Projects",
    "Reviews",
    "RunHandle",
    "Webhooks",
    "Worker",
]
