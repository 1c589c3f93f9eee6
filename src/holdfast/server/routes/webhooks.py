"""Routes of webhooks: what the tenant subscribed to, and what became of deliveries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import PathParameter, QueryParameter

from holdfast.model.json_form import JsonForm
from holdfast.model.webhook import (
    WEBHOOK_EVENTS,
    NewWebhook,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
)
from holdfast.server.caller import RequesterOf
from holdfast.server.parameters import Limit
from holdfast.server.routing import route

__all__ = ["WEBHOOKS"]

WebhookId = Annotated[str, PathParameter(description="The webhook's id.", max_length=128)]

MaxWait = Annotated[
    float,
    QueryParameter(ge=0, le=25, description="How many seconds to wait for the outcome, at most."),
]


class WebhookRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events are posted where."""

    url: Annotated[str, msgspec.Meta(max_length=2048)]
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    graph: str | None = None
    secret: str | None = None


class WebhookList(JsonForm, frozen=True):
    """The webhooks of a tenant."""

    webhooks: list[Webhook]


class DeliveryList(JsonForm, frozen=True):
    """What became of the last message about each run."""

    deliveries: list[WebhookDelivery]


@route("GET", "/v1/webhooks", role="admin", tag="webhooks")
async def list_webhooks(requester: RequesterOf) -> WebhookList:
    """List the webhooks of the tenant, the oldest first."""
    return WebhookList(await requester.hf.webhooks.list(tenant=requester.tenant))


@route("POST", "/v1/webhooks", role="admin", tag="webhooks", status=201)
async def add_webhook(requester: RequesterOf, data: WebhookRequest) -> NewWebhook:
    """Add a webhook. The answer has its secret, which is shown only once."""
    return await requester.hf.webhooks.add(
        data.url,
        events=data.events,
        graph=data.graph,
        secret=data.secret,
        tenant=requester.tenant,
    )


@route("GET", "/v1/webhooks/{id:str}", role="admin", tag="webhooks")
async def get_webhook(requester: RequesterOf, id: WebhookId) -> Webhook:
    """Get a webhook, without its secret."""
    return await requester.hf.webhooks.get(id, tenant=requester.tenant)


@route("DELETE", "/v1/webhooks/{id:str}", role="admin", tag="webhooks", status=204)
async def remove_webhook(requester: RequesterOf, id: WebhookId) -> None:
    """Remove a webhook."""
    await requester.hf.webhooks.remove(id, tenant=requester.tenant)


@route("POST", "/v1/webhooks/{id:str}/test", role="admin", tag="webhooks", status=200)
async def test_webhook(
    requester: RequesterOf,
    id: WebhookId,
    max_wait_seconds: MaxWait = 15,  # noqa: PT028 - not a test
) -> WebhookDelivery:
    """Post a test message to a webhook, and tell what became of it."""
    return await requester.hf.webhooks.test(id, tenant=requester.tenant, max_wait=max_wait_seconds)


@route("GET", "/v1/webhooks/{id:str}/deliveries", role="admin", tag="webhooks")
async def list_deliveries(
    requester: RequesterOf, id: WebhookId, limit: Limit = 100
) -> DeliveryList:
    """List what became of the last message about each run, the latest first."""
    return DeliveryList(
        await requester.hf.webhooks.deliveries(id, tenant=requester.tenant, limit=limit)
    )


WEBHOOKS = (
    list_webhooks,
    add_webhook,
    get_webhook,
    remove_webhook,
    test_webhook,
    list_deliveries,
)
