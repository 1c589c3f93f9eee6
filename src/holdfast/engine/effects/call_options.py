"""The options of a call, which are kept apart from the arguments of its function.

A model chooses the arguments of a tool, including their names. So an argument must never be taken
for an option, such as the idempotency key. Options go to `Context.with_options`, which returns an
object that takes the function and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.engine.effects.begun_requests import BegunRequests, tracked
from holdfast.engine.effects.call_host import ReviewedCall, TellEdit
from holdfast.engine.effects.call_signatures import typed_blocking_call, typed_call
from holdfast.errors import InvalidRequest
from holdfast.graph.tool import Tool
from holdfast.graph.values import is_durable_scalar
from holdfast.model.arguments import Recording, validated_recording
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.policy import Retry, validated_retry
from holdfast.model.quota import Quota, validated_tool_quota

__all__ = [
    "NO_OPTIONS",
    "BlockingCaller",
    "CallOptions",
    "Caller",
    "admitted_key",
    "admitted_options",
    "check_arguments",
]


_KEY_CHARS_MAX = 256
_OPTION_NAMES = ("key", "retry", "quota", "record", "timeout", "heartbeat")


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a call; None means the default of the tool."""

    key: str | None = None
    retry: Retry | None = None
    timeout_ms: int | None = None
    quota: Quota | None = None
    heartbeat_ms: int | None = None
    record: Recording | None = None
    asked_by: str = ""
    """The model that wants the call."""
    reviewed: ReviewedCall | None = None
    """The review of several calls that decided about this one, too."""
    tell_edit: TellEdit | None = None
    """Is told if the reviewers edited the arguments."""


NO_OPTIONS = CallOptions()

MakeCall: TypeAlias = Callable[
    [Callable[..., Any], tuple[Any, ...], Mapping[str, Any], CallOptions], Coroutine[Any, Any, Any]
]
RunBlocking: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]


def admitted_options(
    *,
    key: str | None,
    retry: Retry | None,
    timeout: Duration | None,
    quota: Quota | None,
    heartbeat: Duration | None,
    record: Recording | None,
) -> CallOptions:
    """Return the checked options of a call.

    Raises:
        InvalidRequest: one of them is invalid.
    """
    return CallOptions(
        key=None if key is None else admitted_key(key),
        retry=None if retry is None else validated_retry(retry),
        timeout_ms=None if timeout is None else milliseconds_of(timeout, "timeout"),
        quota=validated_tool_quota(quota),
        heartbeat_ms=None if heartbeat is None else milliseconds_of(heartbeat, "heartbeat"),
        record=None if record is None else validated_recording(record),
    )


def admitted_key(key: object) -> str:
    """Return the checked key of a call, by which the caller names it.

    Raises:
        InvalidRequest: it is not a valid key.
    """
    if (
        type(key) is not str
        or not 0 < len(key) <= _KEY_CHARS_MAX
        or not is_durable_scalar(key)  # otherwise the call would be made, but could not be recorded
    ):
        raise InvalidRequest(
            f"key must be a text of 1 to {_KEY_CHARS_MAX} characters, got {key!r:.80}", field="key"
        )
    return key


def check_arguments(tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that a tool accepts these arguments, and that none is one that the engine injects.

    Otherwise an at-most-once call would become ambiguous: that its function raised does not prove
    that nothing happened.

    Raises:
        InvalidRequest: the tool does not accept them.
    """
    injectable = (("ctx", tool.takes_context), ("idempotency_key", tool.takes_key))
    injected = [name for name, taken in injectable if taken]
    for name in injected:
        if name in kwargs:
            raise InvalidRequest(
                f"{name} must not be passed to {tool.name!r}: Holdfast passes it to the function"
                + ("; ctx.with_options(key=…) chooses it" if name == "idempotency_key" else ""),
                field=name,
            )
    if tool.signature is None:
        return
    try:
        tool.signature.bind(*args, **{**dict.fromkeys(injected), **kwargs})
    except TypeError as error:
        options = [name for name in _OPTION_NAMES if name in kwargs]
        hints = [f"; options go before the call: ctx.with_options({o}=…)" for o in options]
        raise InvalidRequest(
            f"{tool.name!r} does not accept these arguments: {error}{''.join(hints[:1])}",
            field="".join(options[:1]) or None,
        ) from None


class Caller:
    """Makes calls with options; `Context.with_options` returns one."""

    def __init__(self, make: MakeCall, options: CallOptions, requests: BegunRequests) -> None:
        self._make = make
        self._options = options
        self._requests = requests

    @typed_call
    @tracked
    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as `Context.call` does, with these options.

        Raises:
            CallChanged: the ``key`` was used before, with other arguments.
            CallFailed, InvalidRequest, InvalidResult: as `Context.call` does.
        """
        return await self._make(function, args, kwargs, self._options)


class BlockingCaller:
    """Makes calls with options from a plain function."""

    def __init__(self, caller: Caller, block: RunBlocking) -> None:
        self._caller = caller
        self._block = block

    @typed_blocking_call
    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do as `Caller.call` does."""
        return self._block(self._caller.call(function, *args, **kwargs))
