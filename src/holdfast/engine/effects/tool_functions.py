"""Runs the functions of tools: coroutines on the event loop, plain functions in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, cast

from holdfast.engine.effects.call_host import CallRequest
from holdfast.errors import CallTimedOut, InvalidRequest
from holdfast.model.durations import duration_text

__all__ = ["run_function", "run_tool"]


async def run_tool(request: CallRequest, idempotency_key: str, threads: Executor) -> Any:
    """Run the function of a requested call, and return what it returns.

    Raises:
        CallTimedOut: it took longer than the call's timeout.
        InvalidRequest: the arguments do not fit the function.
    """
    tool, kwargs = request.tool, dict(request.kwargs)
    if tool.takes_key:
        kwargs["idempotency_key"] = idempotency_key
    if tool.takes_context:
        kwargs["ctx"] = request.context
    work = partial(run_function, tool.function, request.args, kwargs)
    try:
        return await _run_in_time(work, request, threads)
    except TypeError:
        # Checked only now: it would slow down calls with arguments that fit.
        if (misfit := _misfit(tool.signature, request.args, kwargs)) is None:
            raise
        told = f"the arguments do not fit the parameters of tool {tool.name!r}: {misfit}"
        raise InvalidRequest(told, field="arguments") from None


async def _run_in_time(
    work: Callable[..., Awaitable[Any]], request: CallRequest, threads: Executor
) -> Any:
    tool = request.tool
    if request.timeout_ms is None:
        return await work(plain=tool.plain, threads=threads)
    timeout = asyncio.timeout(request.timeout_ms / 1000)
    try:
        async with timeout:
            return await work(plain=tool.plain, threads=threads)
    except TimeoutError:
        if not timeout.expired():
            raise
        raise CallTimedOut(
            f"{tool.name!r} took longer than {duration_text(request.timeout_ms)}"
        ) from None


def _misfit(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Return why arguments do not fit a signature; None if they do, or it is not known."""
    if signature is None:
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"{error}; it takes {', '.join(signature.parameters) or 'none'}"
    return None


async def run_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    plain: bool,
    threads: Executor,
) -> Any:
    """Run a function, a ``plain`` one in a thread, and return what it returns."""
    if plain:
        call = partial(contextvars.copy_context().run, function, *args, **kwargs)
        value = await asyncio.get_running_loop().run_in_executor(threads, call)
    else:
        value = function(*args, **kwargs)
    return await cast(Awaitable[Any], value) if inspect.isawaitable(value) else value
