"""Prepares the arguments of calls for their records: it copies, bounds and redacts them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.display import get_logger
from holdfast.engine.effects.call_host import CallRequest
from holdfast.engine.effects.plain_arguments import CopyTooLarge, plain_arguments
from holdfast.errors import InvalidRequest
from holdfast.graph.node import is_sync_function
from holdfast.graph.tool import Tool
from holdfast.model.arguments import (
    NOT_REDACTED,
    TOO_LARGE,
    Arguments,
    Recorded,
    Recording,
    recording_of,
    validated_recording,
)
from holdfast.model.invocation import Request
from holdfast.records.codec import encode
from holdfast.records.keys import RunKey

__all__ = ["ArgumentRecorder", "Redact", "named_arguments", "prompt_arguments"]

Redact: TypeAlias = Callable[[Any], Any]
"""Gets the arguments of a call as plain values; returns what is recorded, None for nothing."""

_log = get_logger("holdfast.calls")

# More would hardly fit into a unit, however well it compresses.
_FITTING_BYTES_MAX = 32 * 1024
_FULL_BYTES_MAX = 256 * 1024


class ArgumentRecorder:
    """Prepares the arguments of the calls of this process."""

    def __init__(self, record: Recording = "fitting", redact: Redact | None = None) -> None:
        """Check the options of a process.

        Raises:
            InvalidRequest: ``record`` is unknown, or ``redact`` is not a plain function.
        """
        self._record: Recording = validated_recording(record)
        if redact is not None and not (callable(redact) and is_sync_function(redact)):
            raise InvalidRequest(
                f"redact must be a plain function of the arguments, got {redact!r:.80}",
                field="redact",
            )
        self._redact = redact

    def recording_of(self, request: CallRequest) -> Recording:
        """Return which arguments of a call are recorded."""
        return recording_of(self._record, tool=request.tool.record, call=request.record)

    def recorded(
        self,
        recording: Recording,
        arguments: Mapping[str, Any],
        *,
        call: str,
        after: str = "",
        run: RunKey,
    ) -> Recorded | None:
        """Return the arguments of a call as its record holds them; None if it holds none."""
        if recording == "none":
            return None
        fitting = recording == "fitting"
        limit = _FITTING_BYTES_MAX if fitting else _FULL_BYTES_MAX
        try:
            values = plain_arguments(arguments, limit, cut=not fitting)
            if self._redact is not None:
                redacted = self._redact(values)
                if inspect.iscoroutine(redacted):
                    redacted.close()
                    raise TypeError("redact must not return a coroutine")
                if redacted is None:
                    return None
                # Copied again: it may be anything.
                values = plain_arguments(redacted, limit, cut=not fitting)
            return Arguments(msgspec.Raw(encode(values)), after, fitting)
        except CopyTooLarge:
            return TOO_LARGE
        except Exception as error:
            # Without the error's message, which may have an argument in it.
            message = "%s: redact raised %s for call %s; its arguments are not recorded"
            _log.warning(message, run.log_name, type(error).__name__, call)
            return NOT_REDACTED


def named_arguments(
    tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by the names of the tool's parameters."""
    names = tool.positional
    named = dict(zip(names, args, strict=False))
    if len(args) > len(names):
        named["*args"] = args[len(names) :]
    named.update(kwargs)
    return named


def prompt_arguments(request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a request to a model as its record shows it, with some of its messages."""
    shown: dict[str, Any] = {"model": request.model, "messages": messages}
    if request.tools:
        shown["tools"] = [tool.name for tool in request.tools]
    if request.tool_choice is not None:
        shown["tool_choice"] = request.tool_choice
    return shown | request.params
