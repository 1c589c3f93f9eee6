"""The client of a server: the verbs and types of `Holdfast` over HTTP. Needs holdfast[client].

`Client` is for coroutines; `holdfast.client.sync` has the same for programs without an event loop.
"""

from holdfast.client.bulk_jobs import RemoteBulkJobs
from holdfast.client.client import Client
from holdfast.client.connection import Token
from holdfast.client.fleet import RemoteFleet
from holdfast.client.keys import RemoteKeys
from holdfast.client.map import RemoteMap
from holdfast.client.quotas import RemoteQuotaLevels
from holdfast.client.reviews import RemoteReviews
from holdfast.client.run import RemoteRun
from holdfast.client.webhooks import RemoteWebhooks

__all__ = [
    "Client",
    "RemoteBulkJobs",
    "RemoteFleet",
    "RemoteKeys",
    "RemoteMap",
    "RemoteQuotaLevels",
    "RemoteReviews",
    "RemoteRun",
    "RemoteWebhooks",
    "Token",
]
