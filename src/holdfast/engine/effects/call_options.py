"""The options of a call, which share no names with the arguments of the function.

A model chooses the arguments of a tool, parameter names included. So no argument of a call may ever
be taken for an option of it, such as its idempotency key: options are given to
`Context.with_options`, and what that returns takes the function and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.tool import Tool
from holdfast.graph.values import is_durable_scalar
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


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a call is made; None leaves it to the contract of the tool."""

    key: str | None = None
    retry: Retry | None = None
    timeout_ms: int | None = None
    quota: Quota | None = None
    heartbeat_ms: int | None = None


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
) -> CallOptions:
    """Return the options of a call.

    Raises:
        InvalidRequest: one of them makes no sense.
    """
    return CallOptions(
        key=None if key is None else admitted_key(key),
        retry=None if retry is None else validated_retry(retry),
        timeout_ms=None if timeout is None else milliseconds_of(timeout, "timeout"),
        quota=validated_tool_quota(quota),
        heartbeat_ms=None if heartbeat is None else milliseconds_of(heartbeat, "heartbeat"),
    )


def admitted_key(key: object) -> str:
    """Return the caller's own name for a call.

    Raises:
        InvalidRequest: it cannot be one.
    """
    if (
        type(key) is not str
        or not 0 < len(key) <= _KEY_CHARS_MAX
        or not is_durable_scalar(key)  # or the call would be made, and could not be written down
    ):
        raise InvalidRequest(
            f"the key of a call has 1 to {_KEY_CHARS_MAX} letters, not {key!r:.80}", field="key"
        )
    return key


def check_arguments(tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that a tool takes these arguments, and that none is what the engine hands to it.

    One that is called at most once would wait for a person otherwise: that its function raised is
    no proof that nothing happened.

    Raises:
        InvalidRequest: it does not take them.
    """
    injectable = (("ctx", tool.takes_context), ("idempotency_key", tool.takes_key))
    injected = [name for name, taken in injectable if taken]
    for name in injected:
        if name in kwargs:
            raise InvalidRequest(
                f"{name} must not be given to {tool.name!r}: Holdfast hands it to the function"
                + ("; ctx.with_options(key=…) chooses it" if name == "idempotency_key" else ""),
                field=name,
            )
    if tool.signature is None:
        return
    try:
        tool.signature.bind(*args, **{**dict.fromkeys(injected), **kwargs})
    except TypeError as error:
        options = [name for name in CallOptions.__struct_fields__ if name in kwargs]
        options += [name for name in ("timeout", "heartbeat") if name in kwargs]
        hints = [f"; options are given before the call: ctx.with_options({o}=…)" for o in options]
        raise InvalidRequest(
            f"{tool.name!r} cannot be called so: {error}{''.join(hints[:1])}",
            field="".join(options[:1]) or None,
        ) from None


class Caller:
    """Makes calls with options; `Context.with_options` returns one."""

    def __init__(self, make: MakeCall, options: CallOptions) -> None:
        self._make = make
        self._options = options

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as `Context.call` does, with these options.

        Raises:
            CallChanged: the ``key`` was used before, with other arguments.
            CallFailed, InvalidRequest, InvalidResult: as `Context.call` does.
        """
        return await self._make(function, args, kwargs, self._options)


class BlockingCaller:
    """Makes calls with options in a plain function."""

    def __init__(self, caller: Caller, block: RunBlocking) -> None:
        self._caller = caller
        self._block = block

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do as `Caller.call` does."""
        return self._block(self._caller.call(function, *args, **kwargs))
