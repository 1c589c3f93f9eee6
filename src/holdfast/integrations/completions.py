"""Requests and answers in the format of OpenAI's chat completions."""

from __future__ import annotations

import base64
from io import StringIO
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidPrompt, ModelUnavailable
from holdfast.integrations.responses import AnswerSize, raise_too_large
from holdfast.model.answer_limits import MODEL_NAME_CHARS_MAX, TOOL_CALLS_MAX
from holdfast.model.invocation import Answer, Request, StopReason, ToolCall, Usage

__all__ = [
    "Chunk",
    "Completion",
    "CompletionDraft",
    "ErrorBody",
    "ErrorDetail",
    "completions_request",
]

_STOP_REASONS: dict[str, StopReason] = {"content_filter": "filtered", "length": "length"}
# The fields that the request sets itself, and ``n``: only one answer is paid for and read.
_RESERVED_FIELDS = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "response_format",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
    }
)
_ERROR_CODE_MAX = 1_000_000
_NULL = msgspec.Raw(b"null")
# The keywords that OpenAI supports in a strict schema.
_STRICT_KEYWORDS = frozenset(
    {"$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum"}
    | {"items", "properties", "required", "title", "type"}
)


class CallDelta(msgspec.Struct):
    """A complete tool call, or a piece of one."""

    class Function(msgspec.Struct):
        """The function that is called."""

        name: str | None = None
        arguments: str | None = None

    index: int | None = None
    id: str | None = None
    function: Function = msgspec.field(default_factory=Function)


class Message(msgspec.Struct):
    """A complete message, or a piece of one."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _NULL
    """A list of `CallDelta`, or null; not yet decoded: see `Message.calls`."""

    def calls(self) -> list[CallDelta]:
        """Return the calls; decode at most as many as an answer may have.

        Raises:
            AnswerTooLarge: there are more.
            msgspec.MsgspecError: the field is not a list of calls.
        """
        said = _CALLS_DECODER.decode(self.tool_calls)
        found: list[CallDelta | None] = [] if said is None else list(msgspec.structs.astuple(said))
        if len(found) > TOOL_CALLS_MAX and found[TOOL_CALLS_MAX] is not None:
            raise_too_large("calls of tools", TOOL_CALLS_MAX)
        return [each for each in found if each is not None]


# Items after these are skipped, and take no memory. One more is read than is allowed.
_CALLS_DECODER: msgspec.json.Decoder[msgspec.Struct | None] = msgspec.json.Decoder(
    msgspec.defstruct(
        "CallDeltas",
        [(f"at_{at}", CallDelta | None, None) for at in range(TOOL_CALLS_MAX + 1)],
        array_like=True,
    )
    | None
)


class ReportedUsage(msgspec.Struct):
    """The usage that an endpoint reports."""

    class Details(msgspec.Struct):
        """Details of the input tokens."""

        cached_tokens: int | None = None

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class ErrorDetail(msgspec.Struct):
    """An error that an endpoint reports."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None

    @property
    def reason(self) -> str:
        """The endpoint's code of the error; empty if there is none."""
        # A number may have more digits than Python turns into text.
        code = "" if isinstance(self.code, int) and abs(self.code) > _ERROR_CODE_MAX else self.code
        return str(code or self.type or "")


class ErrorBody(msgspec.Struct):
    """The body of an error response."""

    error: ErrorDetail


class CompletionChoice(msgspec.Struct):
    """The single answer."""

    message: Message
    finish_reason: str | None = None


class FirstChoice(msgspec.Struct, frozen=True, array_like=True):
    """The list of answers; those after the first are skipped, and take no memory."""

    first: CompletionChoice | None = None


class Completion(msgspec.Struct):
    """A response that is not streamed."""

    choices: FirstChoice = FirstChoice()
    usage: ReportedUsage | None = None
    model: str | None = None
    error: ErrorDetail | None = None


class ChunkChoice(msgspec.Struct):
    """A piece of the single answer."""

    delta: Message = msgspec.field(default_factory=Message)
    finish_reason: str | None = None


class FirstChunkChoice(msgspec.Struct, frozen=True, array_like=True):
    """A list as `Choices`."""

    first: ChunkChoice | None = None


class Chunk(msgspec.Struct):
    """An event of a streamed response."""

    choices: FirstChunkChoice = FirstChunkChoice()
    usage: ReportedUsage | None = None
    model: str | None = None
    error: ErrorDetail | None = None


class CallDraft:
    """A tool call that is being assembled."""

    def __init__(self) -> None:
        self.id = ""
        self.name = StringIO()
        self.arguments = StringIO()


class CompletionDraft:
    """Assembles an answer from its pieces."""

    def __init__(self) -> None:
        # Not `str`: appending to one copies all of it.
        self._text = StringIO()
        self._calls: list[CallDraft] = []
        self._size = AnswerSize()
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self._refused = False
        self._model = ""
        self._calls_by_index: dict[int, CallDraft] = {}

    @property
    def text(self) -> str:
        """The text that has arrived so far."""
        return self._text.getvalue()

    @property
    def size(self) -> int:
        """The bytes of text and arguments that have arrived so far."""
        return self._size.bytes

    def add_completion(self, completion: Completion) -> None:
        """Add a response that is not streamed.

        Raises:
            ModelUnavailable: the response contains no answer.
        """
        choice = completion.choices.first
        if choice is None:
            raise ModelUnavailable("the response contains no answer", reason="malformed")
        self._add_message(
            choice.message, choice.finish_reason or "stop", completion.usage, completion.model
        )

    def add_chunk(self, chunk: Chunk) -> str:
        """Add an event; return the text in it.

        Raises:
            AnswerTooLarge: the answer has more text or tool calls than allowed.
            ModelUnavailable: the event cannot be read.
        """
        choice = chunk.choices.first
        if choice is None:
            return self._add_message(Message(), None, chunk.usage, chunk.model)
        return self._add_message(choice.delta, choice.finish_reason, chunk.usage, chunk.model)

    def to_answer(self, request: Request, usage: Usage) -> Answer:
        """Return the answer, after all of it has arrived."""
        stop_reason = _STOP_REASONS.get(self.finish_reason or "", "end")
        if self._refused:
            stop_reason = "filtered"
        calls = [
            # Some endpoints send calls without ids, but a tool's result must name its call.
            ToolCall.read(
                call.id or f"call_{number}", call.name.getvalue(), call.arguments.getvalue()
            )
            for number, call in enumerate(self._calls)
        ]
        return Answer.to(
            request,
            text=self.text,
            tool_calls=calls,
            usage=usage,
            stop_reason="tool_calls" if calls and stop_reason == "end" else stop_reason,
            model=self._model,
        )

    def _add_message(
        self, message: Message, finish: str | None, counted: ReportedUsage | None, model: str | None
    ) -> str:
        text = self._size.add((message.content or "") + (message.refusal or ""))
        self._text.write(text)
        self._refused = self._refused or bool(message.refusal)
        self.finish_reason = finish or self.finish_reason
        self._model = (model or self._model)[:MODEL_NAME_CHARS_MAX]
        for piece in _decode_calls(message):
            call = self._find_call(piece)
            call.id = call.id or self._size.add(piece.id or "")
            call.name.write(self._size.add(piece.function.name or ""))
            call.arguments.write(self._size.add(piece.function.arguments or ""))
        if counted is not None:
            details = counted.prompt_tokens_details
            cached = (details.cached_tokens or 0) if details else 0
            if counted.prompt_tokens is not None and counted.completion_tokens is not None:
                self.usage = Usage(counted.prompt_tokens, counted.completion_tokens, cached)
        return text

    def _find_call(self, piece: CallDelta) -> CallDraft:
        """Return the call that a piece belongs to: by its index, or the last if it has no id."""
        if piece.index is not None and piece.index in self._calls_by_index:
            return self._calls_by_index[piece.index]
        if piece.index is None and not piece.id and self._calls:
            return self._calls[-1]
        self._size.add_call()
        call = CallDraft()
        self._calls.append(call)
        if piece.index is not None:
            self._calls_by_index[piece.index] = call
        return call


def _decode_calls(message: Message) -> list[CallDelta]:
    try:
        return message.calls()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelUnavailable(
            f"the tool calls cannot be read ({error})", reason="malformed"
        ) from error


def completions_request(
    request: Request, model: str, max_tokens: int, *, max_tokens_field: str
) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        InvalidPrompt: ``extra`` has a reserved field, or a tool's result is not text.
    """
    params = dict(request.params)
    extra = params.pop("extra", {})
    if taken := _RESERVED_FIELDS & extra.keys():
        raise InvalidPrompt(f"extra must not contain {min(taken)!r}", field=min(taken))
    body: dict[str, Any] = {
        **extra,
        "model": model,
        "messages": [
            _message(f"messages[{index}]", message)
            for index, message in enumerate(request.messages)
        ],
        max_tokens_field: params.pop("max_tokens", max_tokens),
        **params,
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if request.tool_choice is not None:
        chosen = {"type": "function", "function": {"name": request.tool_choice}}
        words: dict[str, Any] = {"any": "required", "auto": "auto"}
        body["tool_choice"] = words.get(request.tool_choice, chosen)
    if request.output is not None:
        schema = {"name": "answer", "schema": request.output, "strict": _is_strict(request.output)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _message(field: str, message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    said: dict[str, Any] = {"role": message["role"], "content": content}
    if not isinstance(content, str):
        said["content"] = [_part(part) for part in content]
    if message["role"] == "tool":
        said["tool_call_id"] = message["tool_call_id"]
        said["content"] = _result(field, message)
    if calls := message.get("tool_calls"):
        said["content"] = said["content"] or None
        said["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": msgspec.json.encode(call["arguments"]).decode(),
                },
            }
            for call in calls
        ]
    return said


def _result(field: str, message: dict[str, Any]) -> str:
    """Return a tool's result as text: the endpoint accepts nothing else."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for index, part in enumerate(parts):
        if part["type"] != "text":
            raise InvalidPrompt(
                "the result of a tool must be text for this endpoint",
                field=f"{field}.content[{index}].type",
            )
    text = "\n".join(part["text"] for part in parts)
    return f"Error: {text}" if message.get("error") else text


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part["media_type"].startswith("text/"):
        text = part["data"].decode(errors="replace")
        return {"type": "text", "text": f"{part['name']}:\n{text}"}
    url = f"data:{part['media_type']};base64,{base64.b64encode(part['data']).decode()}"
    if part["type"] == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": part["name"], "file_data": url}}


def _is_strict(schema: dict[str, Any]) -> bool:
    """Return whether the endpoint can enforce a schema strictly."""
    properties: dict[str, Any] = schema.get("properties", {})
    if schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != properties.keys():
            return False
    inner = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    if "items" in schema:
        inner.append(schema["items"])
    return schema.keys() <= _STRICT_KEYWORDS and all(
        isinstance(each, dict) and _is_strict(cast(dict[str, Any], each)) for each in inner
    )
