"""Routes that act on one run."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.params import PathParameter
from msgspec import UNSET, Meta, UnsetType

from holdfast.model.run import SignalReceipt
from holdfast.server.caller import RequesterOf
from holdfast.server.parameters import (
    BudgetBody,
    DurationBody,
    IdempotencyKey,
    NameText,
    RunId,
    key_digest,
)
from holdfast.server.routing import route

__all__ = ["RUN_ACTIONS"]

CallId = Annotated[
    str, PathParameter(description="The id of the call.", min_length=1, max_length=256)
]
_Text = Annotated[str, Meta(max_length=4096)]


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal to a run."""

    name: NameText
    payload: Any = None
    signal_id: NameText | None = None


class CancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a run is cancelled."""

    reason: _Text = ""


class RetryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run goes on."""

    from_node: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    keep_answers: bool = False


class ExtendBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a run expires, counted from now."""

    expires: DurationBody


class ResolutionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of an ambiguous call: exactly one of the three."""

    result: Any | UnsetType = UNSET
    error: _Text | None = None
    void: bool = False


@route("POST", "/v1/runs/{id:str}/signals", role="reviewer", tag="runs", status=200, conflicts=True)
async def send_signal(
    requester: RequesterOf, id: RunId, data: SignalBody, idempotency_key: IdempotencyKey = None
) -> SignalReceipt:
    """Send a run a signal. After the answer it is stored, and the run takes it exactly once.

    A signal that is sent again with the same signal_id or Idempotency-Key counts once.
    """
    signal_id = key_digest(
        idempotency_key, data.signal_id, field="signal_id", bound_to=requester.tenant
    )
    return await requester.run(id).signal(data.name, data.payload, signal_id=signal_id)


@route("POST", "/v1/runs/{id:str}/cancel", role="operator", tag="runs", status=204, conflicts=True)
async def cancel_run(requester: RequesterOf, id: RunId, data: CancelBody | None = None) -> None:
    """End a run. To cancel a cancelled run again does nothing."""
    await requester.run(id).cancel("" if data is None else data.reason)


@route("POST", "/v1/runs/{id:str}/retry", role="operator", tag="runs", status=204, conflicts=True)
async def retry_run(requester: RequesterOf, id: RunId, data: RetryBody | None = None) -> None:
    """Let a failed or quarantined run go on, at a node or where it stopped."""
    asked = data or RetryBody()
    await requester.run(id).retry(from_node=asked.from_node, keep_answers=asked.keep_answers)


@route("POST", "/v1/runs/{id:str}/extend", role="operator", tag="runs", status=204, conflicts=True)
async def extend_run(requester: RequesterOf, id: RunId, data: ExtendBody) -> None:
    """Let a run expire later."""
    await requester.run(id).extend(data.expires)


@route("PUT", "/v1/runs/{id:str}/budget", role="operator", tag="runs", status=204, conflicts=True)
async def set_budget(requester: RequesterOf, id: RunId, data: BudgetBody) -> None:
    """Replace the budget of a run. If it waits for a larger one, it goes on."""
    await requester.run(id).set_budget(data.budget())


@route(
    "POST",
    "/v1/runs/{id:str}/calls/{call:str}/resolve",
    role="operator",
    tag="runs",
    status=204,
    conflicts=True,
)
async def resolve_call(
    requester: RequesterOf, id: RunId, call: CallId, data: ResolutionBody
) -> None:
    """Say what became of an ambiguous at-most-once call; then the run continues."""
    await requester.run(id).resolve(call, result=data.result, error=data.error, void=data.void)


RUN_ACTIONS = (send_signal, cancel_run, retry_run, extend_run, set_budget, resolve_call)
