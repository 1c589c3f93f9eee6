"""The messages of webhooks: which event the row of a run shows, and how it is told."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from holdfast.model.moments import utc_text
from holdfast.model.run import Run
from holdfast.model.webhook import WebhookEvent
from holdfast.records.head import ENDED, TROUBLED, Head
from holdfast.records.shown_status import shown_status
from holdfast.records.webhook import Subscription
from holdfast.records.webhook_delivery import Delivery

__all__ = ["TEST_EVENT", "RunEvent", "WebhookMessage", "message_of", "next_event", "test_message"]

TEST_EVENT = "webhook.test"
_ENDS: dict[str, WebhookEvent] = {
    "finished": "run.finished",
    "failed": "run.failed",
    "cancelled": "run.cancelled",
    "expired": "run.expired",
    "quarantined": "run.quarantined",
}
# A run that waits for its turn or its time has not begun.
_NOT_BEGUN = frozenset({"scheduled", "queued"})
_STARTED = "started"


class RunEvent(NamedTuple):
    """What the row of a run shows."""

    type: WebhookEvent
    mark: str
    """Tells this state of the run from every other one."""
    at_ms: int

    @property
    def is_start(self) -> bool:
        """Whether it tells that the run started."""
        return self.mark == _STARTED


class WebhookMessage(NamedTuple):
    """What is posted."""

    id: str
    """The same in every attempt, so that the receiver can tell a repeat."""
    type: str
    body: bytes


def next_event(
    delivery: Delivery, webhook: Subscription, head: Head, *, now_ms: int
) -> RunEvent | None:
    """Return what the webhook has not been told yet; None if it knows all that it wants.

    A state that the run left before it could be told is not told: the row does not have it.
    """
    if not delivery.started:
        return RunEvent("run.started", _STARTED, head.created_ms)
    event = _event_of(head, now_ms)
    if event is None or event.type not in webhook.events or event.mark == delivery.seen:
        return None
    if head.status in TROUBLED and now_ms >= head.expires_ms:
        # A worker claims it once more, to free its storage: that is no event.
        return None if delivery.seen.startswith(f"{event.type}:") else event
    return event


def _event_of(head: Head, now_ms: int) -> RunEvent | None:
    kind = _ENDS.get(head.status)
    if kind is None:
        is_paused = shown_status(head, now_ms=now_ms) == "waiting"
        if head.status in ENDED or not is_paused or head.reason in _NOT_BEGUN:
            return None
        kind = "run.paused"
    # The epoch grows also when the storage of an ended run is freed, which is no event. A pause and
    # a quarantine write nothing into the journal, so the position does not tell two of them apart.
    epoch = head.epoch if kind in ("run.paused", "run.quarantined") else 0
    return RunEvent(kind, f"{kind}:{epoch}:{head.extent.position}", head.updated_ms)


def message_of(delivery: Delivery, event: RunEvent, run: Run) -> WebhookMessage:
    """Return the message that tells an event of a run."""
    parts = (delivery.tenant, delivery.run, delivery.generation, delivery.webhook, event.mark)
    return _message(parts, event.type, event.at_ms, run.as_dict())


def test_message(delivery: Delivery) -> WebhookMessage:
    """Return the message that tests a webhook."""
    parts = (delivery.tenant, delivery.run, delivery.generation, delivery.webhook, TEST_EVENT)
    return _message(parts, TEST_EVENT, delivery.created_ms, {"webhook": delivery.webhook})


def _message(parts: tuple[str, ...], kind: str, at_ms: int, data: dict[str, Any]) -> WebhookMessage:
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    moment = utc_text(datetime.fromtimestamp(at_ms / 1000, UTC))
    body = msgspec.json.encode({"type": kind, "timestamp": moment, "data": data})
    return WebhookMessage(f"msg_{digest[:32]}", kind, body)
