# Generated from src/holdfast/webhooks/webhooks.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Webhooks`; the async one is `holdfast.webhooks.webhooks.Webhooks`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

from holdfast.model.durations import Duration, seconds
from holdfast.model.webhook import (
    WEBHOOK_EVENTS,
    NewWebhook,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
)
from holdfast.portal import Portal
from holdfast.webhooks.webhooks import Webhooks as AsyncWebhooks

__all__ = ["Webhooks"]

_TEST_WAIT = seconds(20)


class Webhooks:
    """The webhooks of a store: events of runs that are posted to other systems."""

    def __init__(self, portal: Portal, webhooks: AsyncWebhooks) -> None:
        self._portal = portal
        self._webhooks = webhooks

    def add(
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
        """
        return self._portal.call(
            self._webhooks.add, url, events=events, graph=graph, tenant=tenant, secret=secret
        )

    def list(self, *, tenant: str | None = None) -> builtins.list[Webhook]:
        """Return the webhooks of the tenant, the oldest first.

        Raises:
            InvalidName: the tenant is not a valid name.
        """
        return self._portal.call(self._webhooks.list, tenant=tenant)

    def get(self, id: str, *, tenant: str | None = None) -> Webhook:
        """Return a webhook.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        return self._portal.call(self._webhooks.get, id, tenant=tenant)

    def remove(self, id: str, *, tenant: str | None = None) -> None:
        """Remove a webhook. Other processes stop to deliver to it within 5 s.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        self._portal.call(self._webhooks.remove, id, tenant=tenant)

    def test(
        self, id: str, *, tenant: str | None = None, max_wait: Duration = _TEST_WAIT
    ) -> WebhookDelivery:
        """Let a server or worker post a message of the type ``webhook.test``; return the outcome.

        Its ``state`` is ``pending`` if no process delivered it within ``max_wait``: then none runs.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        return self._portal.call(self._webhooks.test, id, tenant=tenant, max_wait=max_wait)

    def deliveries(
        self, id: str, *, tenant: str | None = None, limit: int = 100
    ) -> builtins.list[WebhookDelivery]:
        """Return what became of the last message about each run, the latest first.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
            InvalidQuery: the limit is not from 1 to 1,000.
        """
        return self._portal.call(self._webhooks.deliveries, id, tenant=tenant, limit=limit)
