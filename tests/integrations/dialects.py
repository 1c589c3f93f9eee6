"""One plan of what a model says, in the words of each service."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from holdfast.model.invocation import ToolCall, Usage

MEASURED = Usage(input_tokens=30, output_tokens=20, cached_input_tokens=10)


def completion(
    text: str = "",
    *,
    calls: Iterable[ToolCall] = (),
    finish: str = "stop",
    **fields: Any,
) -> dict[str, Any]:
    """Return an answer of chat completions."""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"model": "m-2026-01-01", "choices": [choice], "usage": completion_usage(), **fields}


def completion_usage() -> dict[str, Any]:
    return {
        "prompt_tokens": MEASURED.input_tokens,
        "completion_tokens": MEASURED.output_tokens,
        "prompt_tokens_details": {"cached_tokens": MEASURED.cached_input_tokens},
    }


def chunks(
    pieces: Iterable[str] = (),
    *,
    calls: Iterable[ToolCall] = (),
    finish: str | None = "stop",
    done: bool = True,
) -> list[bytes]:
    """Return an answer of chat completions as server-sent events."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces]
    for index, call in enumerate(calls):
        first = {"name": call.name, "arguments": ""}
        arguments = json.dumps(call.arguments)
        half = len(arguments) // 2
        deltas.append({"tool_calls": [{"index": index, "id": call.id, "function": first}]})
        for part in (arguments[:half], arguments[half:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    said: list[dict[str, Any]] = [
        {"model": "m-2026-01-01", "choices": [{"delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    if finish is not None:
        said.append({"choices": [{"delta": {}, "finish_reason": finish}]})
        said.append({"choices": [], "usage": completion_usage()})
    events = [event(each) for each in said]
    return [*events, b"data: [DONE]\n\n"] if done else events


def event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def converse(
    text: str = "",
    *,
    calls: Iterable[ToolCall] = (),
    stop: str = "end_turn",
) -> dict[str, Any]:
    """Return an answer of Converse."""
    content: list[dict[str, Any]] = [{"text": text}] if text else []
    content += [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}
        for call in calls
    ]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop,
        "usage": converse_usage(),
        "metrics": {"latencyMs": 1},
    }


def converse_usage() -> dict[str, int]:
    return {
        "inputTokens": MEASURED.input_tokens - MEASURED.cached_input_tokens,
        "outputTokens": MEASURED.output_tokens,
        "totalTokens": MEASURED.input_tokens + MEASURED.output_tokens,
        "cacheReadInputTokens": MEASURED.cached_input_tokens,
    }


def frames(
    pieces: Iterable[str] = (),
    *,
    calls: Iterable[ToolCall] = (),
    stop: str | None = "end_turn",
) -> list[bytes]:
    """Return an answer of ConverseStream."""
    said = [frame("messageStart", {"role": "assistant"})]
    for piece in pieces:
        delta = {"contentBlockIndex": 0, "delta": {"text": piece}}
        said.append(frame("contentBlockDelta", delta))
    for index, call in enumerate(calls, start=1):
        use = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        said.append(frame("contentBlockStart", {"contentBlockIndex": index, "start": use}))
        arguments = json.dumps(call.arguments)
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            delta = {"contentBlockIndex": index, "delta": {"toolUse": {"input": part}}}
            said.append(frame("contentBlockDelta", delta))
        said.append(frame("contentBlockStop", {"contentBlockIndex": index}))
    if stop is not None:
        said.append(frame("messageStop", {"stopReason": stop}))
        usage = {"usage": converse_usage(), "metrics": {"latencyMs": 1}}
        said.append(frame("metadata", usage))
    return said


def frame(kind: str, fields: dict[str, Any], *, message_type: str = "event") -> bytes:
    """Return one message of AWS' event streams."""
    payload = json.dumps(fields).encode()
    named = {
        ":message-type": message_type,
        f":{message_type}-type": kind,
        ":content-type": "application/json",
    }
    headers = b""
    for name, value in named.items():
        headers += struct.pack("!B", len(name)) + name.encode()
        headers += struct.pack("!BH", 7, len(value)) + value.encode()
    prelude = struct.pack("!II", len(headers) + len(payload) + 16, len(headers))
    checked = prelude + struct.pack("!I", crc32(prelude)) + headers + payload
    return checked + struct.pack("!I", crc32(checked))
