"""Requests in the format of Bedrock's Converse API."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from holdfast.errors import InvalidPrompt
from holdfast.model.invocation import Request

__all__ = ["ANSWER_TOOL", "converse_request"]

ANSWER_TOOL = "give_answer"
"""The tool that a model must call to answer with an object."""

_IMAGE_FORMATS = {
    "image/gif": "gif",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/png": "png",
    "image/webp": "webp",
}
_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_EXCEL = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_DOCUMENT_FORMATS = {
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    _EXCEL: "xlsx",
    _WORD: "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
_USE_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_FORBIDDEN_IN_NAMES = re.compile(r"[^a-zA-Z0-9\s()\[\]-]+")
_NAME_MAX = 200


def converse_request(request: Request, model_id: str, max_tokens: int) -> dict[str, Any]:
    """Return the arguments of Converse and ConverseStream.

    Raises:
        InvalidPrompt: Bedrock does not support a media type, or a tool has a reserved name.
    """
    if request.output is not None and any(tool.name == ANSWER_TOOL for tool in request.tools):
        raise InvalidPrompt(f"{ANSWER_TOOL!r} is reserved; rename this tool", field="tools")
    params = request.params
    inference: dict[str, Any] = {"maxTokens": params.get("max_tokens", max_tokens)}
    for ours, theirs in (("temperature", "temperature"), ("top_p", "topP")):
        if ours in params:
            inference[theirs] = params[ours]
    if "stop" in params:
        inference["stopSequences"] = params["stop"]
    body: dict[str, Any] = {
        "modelId": model_id,
        "messages": _messages(request),
        "inferenceConfig": inference,
    }
    if system := _system(request):
        body["system"] = system
    if tools := _tools(request):
        body["toolConfig"] = tools
    if "extra" in params:
        body["additionalModelRequestFields"] = params["extra"]
    return body


def _messages(request: Request) -> list[dict[str, Any]]:
    """Return the messages as turns: adjacent messages of one side are merged."""
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(request.messages):
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        content = _blocks(f"messages[{index}].content", message["content"])
        if message["role"] == "tool":
            content = [_result(message, content)]
        for call in message.get("tool_calls", ()):
            use = {
                "toolUseId": _use_id(call["id"]),
                "name": call["name"],
                "input": call["arguments"],
            }
            content.append({"toolUse": use})
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(content)
        else:
            turns.append({"role": role, "content": content})
    return turns


def _system(request: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index, message in enumerate(request.messages):
        if message["role"] == "system":
            found.extend(_blocks(f"messages[{index}].content", message["content"]))
    return found


def _result(message: dict[str, Any], content: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "toolUseId": _use_id(message["tool_call_id"]),
        "content": content or [{"text": "(nothing)"}],
    }
    if message.get("error"):
        result["status"] = "error"
    return {"toolResult": result}


def _blocks(field: str, content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        if part["type"] == "text":
            if part["text"].strip():  # Bedrock refuses blank texts
                blocks.append({"text": part["text"]})
        elif part["type"] == "image":
            kind = _format_of(f"{field}[{index}].media_type", part["media_type"], _IMAGE_FORMATS)
            blocks.append({"image": {"format": kind, "source": {"bytes": part["data"]}}})
        else:
            kind = _format_of(f"{field}[{index}].media_type", part["media_type"], _DOCUMENT_FORMATS)
            name = _FORBIDDEN_IN_NAMES.sub(" ", part["name"]).strip()[:_NAME_MAX] or "document"
            source = {"bytes": part["data"]}
            blocks.append({"document": {"format": kind, "name": name, "source": source}})
    return blocks


def _format_of(field: str, media_type: str, formats: dict[str, str]) -> str:
    if media_type not in formats:
        raise InvalidPrompt(
            f"Bedrock supports only {', '.join(formats)}, got {media_type}",
            field=field,
        )
    return formats[media_type]


def _tools(request: Request) -> dict[str, Any] | None:
    specs = [_spec(tool.name, tool.description, tool.parameters) for tool in request.tools]
    choice: dict[str, Any] = {}
    if request.output is not None:
        specs.append(_spec(ANSWER_TOOL, "Give the answer.", request.output))
        choice = {"any": {}} if request.tools else {"tool": {"name": ANSWER_TOOL}}
    elif not specs:
        # Bedrock requires a declaration of each tool that was ever called, even if none may be now.
        specs = [_spec(name, "", {"type": "object"}) for name in _called_tools(request)]
    if request.tool_choice == "any":
        choice = {"any": {}}
    elif request.tool_choice not in (None, "auto"):
        choice = {"tool": {"name": request.tool_choice}}
    if not specs:
        return None
    # Some models do not support toolChoice, so it is left out unless it is needed.
    return {"tools": specs, "toolChoice": choice} if choice else {"tools": specs}


def _spec(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": name, "inputSchema": {"json": schema}}
    if description.strip():
        spec["description"] = description
    return {"toolSpec": spec}


def _called_tools(request: Request) -> list[str]:
    calls = [call["name"] for each in request.messages for call in each.get("tool_calls", ())]
    return list(dict.fromkeys(calls))


def _use_id(call_id: str) -> str:
    """Return an id that Bedrock accepts; another service may have made the call."""
    if _USE_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:32]
