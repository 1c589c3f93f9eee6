"""Webhooks as callers see them: what a tenant subscribed to, and what became of deliveries."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast, get_args

from holdfast.errors import InvalidRequest
from holdfast.model.json_form import JsonForm

__all__ = [
    "WEBHOOK_EVENTS",
    "DeliveryState",
    "NewWebhook",
    "Webhook",
    "WebhookDelivery",
    "WebhookEvent",
    "validated_events",
]

WebhookEvent: TypeAlias = Literal[
    "run.started",
    "run.paused",
    "run.finished",
    "run.failed",
    "run.cancelled",
    "run.expired",
    "run.quarantined",
]
"""What a webhook can tell."""

WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)

DeliveryState: TypeAlias = Literal["pending", "delivered", "failing", "failed"]
"""``failing``: it is tried again later. ``failed``: it was given up."""


class Webhook(JsonForm, frozen=True, kw_only=True):
    """A subscription of a tenant: events of runs are posted to an address."""

    id: str
    tenant: str
    url: str
    events: tuple[WebhookEvent, ...]
    graph: str | None = None
    """Only runs of this graph; None for all."""
    created_at: datetime
    disabled_at: datetime | None = None
    """When the receiver answered 410, so that nothing is sent any more."""


class NewWebhook(JsonForm, frozen=True, kw_only=True):
    """A webhook with its secret, which is shown only once."""

    webhook: Webhook
    secret: str
    """The receiver verifies signatures with it: ``whsec_…``."""

    def __repr__(self) -> str:
        # A repr goes into logs.
        return f"NewWebhook(webhook={self.webhook!r}, secret='<hidden>')"


class WebhookDelivery(JsonForm, frozen=True, kw_only=True):
    """What became of the last message about one run to one webhook."""

    webhook: str
    run: str
    event: str
    """The event of the message; ``webhook.test`` for a test."""
    state: DeliveryState
    attempts: int
    """How often it was tried in vain."""
    error: str | None = None
    """Why the last attempt failed."""
    updated_at: datetime
    next_at: datetime | None = None
    """When it is tried again, or the run is looked at again; None if never."""


def validated_events(events: object) -> tuple[WebhookEvent, ...]:
    """Return the events of a webhook in their order, each once.

    Raises:
        InvalidRequest: it is not a list of known events, or an empty one.
    """
    known: set[Any] = set(WEBHOOK_EVENTS)
    given = (
        list(cast(Iterable[Any], events))
        if isinstance(events, Iterable) and not isinstance(events, str)
        else None
    )
    if not given or any(not isinstance(each, str) or each not in known for each in given):
        raise InvalidRequest(
            f"events must be a list of {', '.join(WEBHOOK_EVENTS)}, got {events!r:.120}",
            field="events",
        )
    return tuple(each for each in WEBHOOK_EVENTS if each in given)
