"""`RemoteWebhooks`: what tenants of a server subscribed to, and what became of the deliveries."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

from holdfast.client.arguments import seconds_of_duration
from holdfast.client.connection import ServerConnection
from holdfast.client.reading import page_of, read
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.model.durations import Duration, seconds
from holdfast.model.names import validated_name
from holdfast.model.webhook import (
    WEBHOOK_EVENTS,
    NewWebhook,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
    validated_events,
)

__all__ = ["RemoteWebhooks"]

_TEST_WAIT = seconds(20)


class RemoteWebhooks:
    """The webhooks of a server: events of runs that are posted to other systems.

    Every call needs the role admin.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def add(
        self,
        url: str,
        *,
        events: Iterable[WebhookEvent] = WEBHOOK_EVENTS,
        graph: str | None = None,
        tenant: str | None = None,
        secret: str | None = None,
    ) -> NewWebhook:
        """Post events of the tenant's runs to an address, from now on. The secret is shown once.

        It covers runs that are started 5 s later; after the first webhook of a store, a minute
        later. ``graph`` limits it to runs of one graph. The receiver verifies signatures with the
        ``secret``, by default a random one.

        Raises:
            TargetRefused: the address is not https, or not public.
            InvalidRequest: unknown events, a wrong secret, or too many webhooks.
            InvalidName: the graph or the tenant is not a valid name.
            ServerUnavailable: the server did not answer in time; the webhook may exist.
        """
        body = {
            "url": url,
            "events": validated_events(events),
            "graph": None if graph is None else validated_name(graph, "graph"),
            "secret": secret,
        }
        shown = await self._connection.call("webhooks_add", body=body, tenant=tenant)
        return read(NewWebhook, shown)

    async def list(self, *, tenant: str | None = None) -> builtins.list[Webhook]:
        """Return the webhooks of the tenant, the oldest first.

        Raises:
            InvalidName: the tenant is not a valid name.
        """
        shown = await self._connection.call("webhooks_list", tenant=tenant)
        return page_of(Webhook, shown, "webhooks")[0]

    async def get(self, id: str, *, tenant: str | None = None) -> Webhook:
        """Return a webhook.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        names = {"id": validated_name(id, "id")}
        shown = await self._connection.call("webhooks_get", names=names, tenant=tenant)
        return read(Webhook, shown)

    async def remove(self, id: str, *, tenant: str | None = None) -> None:
        """Remove a webhook. Other processes stop to deliver to it within 5 s.

        Raises:
            WebhookNotFound: the tenant has no such webhook, or it was removed by a request that had
                no answer.
        """
        names = {"id": validated_name(id, "id")}
        await self._connection.call("webhooks_remove", names=names, tenant=tenant)

    async def test(
        self, id: str, *, tenant: str | None = None, max_wait: Duration = _TEST_WAIT
    ) -> WebhookDelivery:
        """Let a server or worker post a message of the type ``webhook.test``; return the outcome.

        Its ``state`` is ``pending`` if no process delivered it within ``max_wait``, at most 25 s:
        then none runs. The client's ``timeout`` must be longer.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
            InvalidRequest: ``max_wait`` is not a duration of at most 25 s.
        """
        shown = await self._connection.call(
            "webhooks_test",
            names={"id": validated_name(id, "id")},
            query={"max_wait_seconds": seconds_of_duration(max_wait, "max_wait")},
            tenant=tenant,
        )
        return read(WebhookDelivery, shown)

    async def deliveries(
        self, id: str, *, tenant: str | None = None, limit: int = 100
    ) -> builtins.list[WebhookDelivery]:
        """Return what became of the last message about each run, the latest first.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
            InvalidQuery: the limit is not from 1 to 1,000.
        """
        shown = await self._connection.call(
            "webhooks_deliveries",
            names={"id": validated_name(id, "id")},
            query={"limit": validated_limit(limit)},
            tenant=tenant,
        )
        return page_of(WebhookDelivery, shown, "deliveries")[0]
