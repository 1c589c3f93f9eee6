"""The blocking client: ``from holdfast.client.sync import Client``, without an event loop.

An event loop in a thread of its own carries out each call, and the caller blocks until it has
answered. Several threads may share one `Client`.
"""

from holdfast.client.sync.bulk_jobs import RemoteBulkJobs
from holdfast.client.sync.client import Client
from holdfast.client.sync.documents import RemoteDocuments
from holdfast.client.sync.fleet import RemoteFleet
from holdfast.client.sync.keys import RemoteKeys
from holdfast.client.sync.map import RemoteMap
from holdfast.client.sync.projects import RemoteProjects
from holdfast.client.sync.quotas import RemoteQuotaLevels
from holdfast.client.sync.reviews import RemoteReviews
from holdfast.client.sync.run import RemoteRun
from holdfast.client.sync.webhooks import RemoteWebhooks
from holdfast.portal import BlockingStream

__all__ = [
    "BlockingStream",
    "Client",
    "RemoteBulkJobs",
    "RemoteDocuments",
    "RemoteFleet",
    "RemoteKeys",
    "RemoteMap",
    "RemoteProjects",
    "RemoteQuotaLevels",
    "RemoteReviews",
    "RemoteRun",
    "RemoteWebhooks",
]
