"""Addresses that a node gives to other systems: a POST to one is a signal to the run."""

from __future__ import annotations

from holdfast.engine.execution.typed_signals import awaited_type
from holdfast.engine.execution.visit import Visit
from holdfast.engine.runs.callbacks import sign_callback
from holdfast.errors import InvalidRequest, PublicUrlMissing
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.names import validated_name
from holdfast.model.program import Program
from holdfast.model.signals import SignalName

__all__ = ["callback_signal", "make_callback"]


def callback_signal(program: Program, condition: SignalName | str) -> str:
    """Return the name of the signal that a callback sends.

    Raises:
        InvalidRequest: the condition is neither a signal nor the name of one.
        UnknownSignal: the program does not take this signal.
    """
    if isinstance(condition, str):
        condition = SignalName(condition)
    if not isinstance(condition, SignalName):
        raise InvalidRequest(
            f'condition must be signal("name") or its name, got {condition!r:.80}',
            field="condition",
        )
    name = validated_name(condition.name, "a signal's name")
    awaited_type(program, condition)
    return name


async def make_callback(visit: Visit, condition: SignalName | str, expires: Duration | None) -> str:
    """Return a signed address for a signal to the run of a visit; see `Context.callback`."""
    visit.check_open()
    name, claimed = callback_signal(visit.external.program, condition), visit.claimed
    span_ms = None if expires is None else milliseconds_of(expires, "expires")
    public_url = claimed.kernel.public_url
    if public_url is None:
        raise PublicUrlMissing(
            "a callback needs the address under which other systems reach the server: pass "
            "Holdfast(public_url=…) or holdfast serve --public-url, or set HOLDFAST_PUBLIC_URL",
            field="public_url",
        )
    with visit.remember_loss():
        if claimed.persistence.in_memory is not None:  # a POST must find the run
            await claimed.persistence.store_from_node()
        token = await claimed.claim.retry_store_errors(
            lambda: sign_callback(claimed.kernel, claimed.head, name, span_ms)
        )
    return f"{public_url}/v1/callbacks/{token}"
