"""Finds out what became of calls that may have been made: the tool's probe says, or a person."""

from __future__ import annotations

from typing import Any

from holdfast.display import get_logger
from holdfast.engine.effects.call_host import Ambiguous, CallHost, CallRequest
from holdfast.engine.effects.call_records import CallRecords
from holdfast.engine.effects.tool_functions import run_function
from holdfast.errors import CallFailed
from holdfast.graph.mismatch import Mismatch
from holdfast.graph.node import is_sync_function
from holdfast.graph.tool import UNKNOWN, VOID, Done, Tool
from holdfast.graph.values import converted, durable
from holdfast.model.call import Call
from holdfast.model.event import CallFinished, CallVoided

__all__ = ["AmbiguousCalls"]

_log = get_logger("holdfast.calls")


class AmbiguousCalls:
    """The ambiguous calls of one visit: those that may or may not have been made."""

    def __init__(self, host: CallHost, records: CallRecords) -> None:
        self._host = host
        self._records = records

    async def resolve(
        self, call: str, known: Call, request: CallRequest, *, raised: Exception | None
    ) -> None:
        """Find out what became of a call, and record it.

        ``raised`` is what the last attempt raised, where this process made it.
        """
        key = self._records.idempotency_key(call)
        match await self._probe_tool(request.tool, key):
            case Done(result) if not self._mismatch(result, request.tool):
                kept = durable(result)
                await self._records.record(
                    CallFinished, call, known.digest, kept, durable=True, by="probe"
                )
            case found if found is VOID:
                await self._records.record(CallVoided, call, "probe", durable=True)
                if raised is not None:  # a failed attempt, which counts against the retries
                    await self._records.record_failed_attempt(call, known.digest, raised, request)
            case found:
                if found is not UNKNOWN:
                    message = (
                        "%s: the probe of %r must return Done(a result), VOID or UNKNOWN, got %s"
                    )
                    kind = type(found).__name__
                    _log.warning(message, self._host.run.log_name, request.tool.name, kind)
                await self._ask_person(call, known, request, key)

    async def _probe_tool(self, tool: Tool[..., Any], key: str) -> Any:
        if tool.probe is None:
            return UNKNOWN
        try:
            plain = is_sync_function(tool.probe)
            return await run_function(
                tool.probe, (key,), {}, plain=plain, threads=self._host.threads
            )
        except Exception as error:
            message = "%s: the probe of %r raised for the key %s: %r"
            _log.warning(message, self._host.run.log_name, tool.name, key, error)
            return UNKNOWN

    async def _ask_person(self, call: str, known: Call, request: CallRequest, key: str) -> None:
        answer = await self._await_resolution(call, request, key)
        if answer["outcome"] == "void":
            await self._records.record(CallVoided, call, "person", durable=True)
        elif answer["outcome"] == "failed":
            error = CallFailed(answer["error"])
            await self._records.record_failure(call, known.digest, error, request, by="person")
        else:
            await self._records.record(
                CallFinished, call, known.digest, answer["result"], durable=True, by="person"
            )

    async def _await_resolution(self, call: str, request: CallRequest, key: str) -> dict[str, Any]:
        """Return what a person says about a call; ask again if the result has the wrong type."""
        id = self._records.resolution_id(call)
        named, number, mismatch = id, 0, ""
        while True:
            arguments = self._records.recorded_arguments(call)
            ambiguous = Ambiguous(named, request.tool.name, key, call, arguments, mismatch)
            answer: dict[str, Any] = (await self._host.await_resolution(ambiguous)).payload
            if answer["outcome"] == "done":
                mismatch = self._mismatch(answer["result"], request.tool)
            if answer["outcome"] != "done" or not mismatch:
                return answer
            message = "%s: the result that was reported for call %s cannot be its result: %s"
            _log.warning(message, self._host.run.log_name, call, mismatch)
            number += 1
            named = f"{id}.{number}"

    def _mismatch(self, result: Any, tool: Tool[..., Any]) -> str:
        """Return why a reported result cannot be one of the tool; empty if it can."""
        limit = self._host.limits.answer_bytes_max
        try:
            converted(durable(result, bytes_max=limit), tool.returns, objects=False)
        except Mismatch as error:
            return str(error)
        return ""
