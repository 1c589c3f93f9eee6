"""Requests to models, their answers, and the port that an adapter implements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol, TypeAlias, cast, runtime_checkable

import msgspec

from holdfast.errors import InvalidAnswer, InvalidPrompt
from holdfast.model.answer_limits import JSON_CONTAINERS_MAX, JSON_DEPTH_MAX
from holdfast.model.pricing import ModelPrice, Usage
from holdfast.model.prompt import (
    check_tool,
    validated_messages,
    validated_output_schema,
    validated_params,
)
from holdfast.model.type_parameters import ValueT

__all__ = [
    "Answer",
    "Emit",
    "Model",
    "Request",
    "StopReason",
    "TokenCounter",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "input_bytes",
    "input_tokens_max",
    "parsed_json",
    "tokens_max",
]

Emit: TypeAlias = Callable[[str], None]
"""Receives the text of an answer in pieces, in the thread of the event loop. Must not raise."""

StopReason: TypeAlias = Literal["end", "tool_calls", "length", "filtered"]
"""Why a model stopped: it finished, it calls tools, it reached max_tokens, or it was filtered."""

_TOOLS_MAX = 128
# Two patterns, each of which takes linear time. As one pattern they took quadratic time for texts
# that a model can be made to write.
_CODE_FENCE_START = re.compile(r"```[a-zA-Z]*[ \t]*\n")
_CODE_FENCE_BODY = re.compile(r"(.*)\n[ \t]*```", re.DOTALL)

# Tokens that a service adds to a prompt. Each is more than any known service adds.
_PROMPT_OVERHEAD_TOKENS = 64
_MESSAGE_OVERHEAD_TOKENS = 16
_TOOLS_OVERHEAD_TOKENS = 1_000


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that a model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """The JSON schema of the arguments. It must be the schema of an object."""

    def __post_init__(self) -> None:
        check_tool(self.name, self.description, self.parameters)


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool that a model asks for."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    malformed: str = ""
    """What the model wrote if the arguments are not a JSON object."""

    @classmethod
    def read(cls, id: str, name: str, text: str) -> ToolCall:
        """Return a call with the arguments that a model wrote as text."""
        try:
            # Models omit the braces if a tool takes no arguments.
            arguments: Any = parsed_json(text) if text.strip() else {}
        except InvalidAnswer:
            arguments = None
        if isinstance(arguments, dict):
            return cls(id, name, cast(dict[str, Any], arguments))
        return cls(id, name, malformed=text)


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to a model. `Request.of` builds it from the arguments of a user."""

    model: str
    """The id of the model at the service. It is not the name in this process, so that another model
    under the same name is another request."""
    messages: list[dict[str, Any]]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    """``auto`` or None: the model decides; ``any``: it must call a tool; else the tool's name."""
    output: dict[str, Any] | None = None
    """The JSON schema of the answer, if it has to be a JSON object."""
    params: dict[str, Any] = {}
    """max_tokens, temperature, top_p, stop, seed; ``extra`` has parameters of the service."""
    idempotency_key: str = ""

    @classmethod
    def of(
        cls,
        model: str,
        messages: Any,
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: str | None = None,
        output: dict[str, Any] | None = None,
        idempotency_key: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Request:
        """Return the request in the form in which it is sent, hashed and stored.

        Raises:
            InvalidPrompt: a message, a tool or a parameter is invalid. ``field`` says which.
        """
        if not isinstance(tools, Sequence) or not all(isinstance(t, ToolSpec) for t in tools):
            raise InvalidPrompt(
                f"tools must be a list of ToolSpec, as tool_of(function)[0] is, got {tools!r:.80}",
                field="tools",
            )
        if len(tools) > _TOOLS_MAX:
            raise InvalidPrompt(
                f"tools must have at most {_TOOLS_MAX} elements, got {len(tools)}",
                field="tools",
                size=len(tools),
                limit=_TOOLS_MAX,
            )
        names = [tool.name for tool in tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidPrompt(f"two tools have the name {name}", field=f"tools[{index}].name")
        if tool_choice is not None and (not names or tool_choice not in ("auto", "any", *names)):
            raise InvalidPrompt(
                f"tool_choice must be auto, any or the name of a tool, got {tool_choice!r:.80}",
                field="tool_choice",
            )
        return cls(
            model=model,
            messages=validated_messages(messages),
            tools=tuple(tools),
            tool_choice=tool_choice,
            output=None if output is None else validated_output_schema(output),
            params=validated_params(
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                stop=stop,
                seed=seed,
                extra=extra,
            ),
            idempotency_key=idempotency_key,
        )


class Answer(msgspec.Struct, Generic[ValueT], frozen=True, kw_only=True, omit_defaults=True):
    """The answer of a model, as the journal stores it. Its ``value`` is a ``ValueT``."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop_reason: StopReason = "end"
    model: str = ""
    """The name of the model, as the service reports it."""
    value: ValueT = cast(ValueT, None)
    """The text parsed as JSON, if a schema was given; None if it is not JSON."""
    passed: bool | None = None
    """Whether it passed the check of `Context.model`; None if there was no check."""
    flags: tuple[str, ...] = ()
    """What a guardrail flagged, as ``output:pii:EMAIL:anonymized``. Empty without a guardrail."""

    @classmethod
    def to(
        cls,
        request: Request,
        *,
        text: str,
        tool_calls: Sequence[ToolCall] = (),
        usage: Usage,
        stop_reason: StopReason = "end",
        model: str = "",
        flags: Sequence[str] = (),
    ) -> Answer[Any]:
        """Return the answer to a request. Parse its text if the request has a schema."""
        value: Any = None
        if request.output is not None and text:
            with suppress(InvalidAnswer):
                value = parsed_json(text)
        return cls(
            text=text,
            tool_calls=tuple(tool_calls),
            usage=usage,
            stop_reason=stop_reason,
            model=model or request.model,
            value=value,
            flags=tuple(flags),
        )

    def json(self) -> Any:
        """Return the answer parsed as JSON, also from a code fence.

        Raises:
            InvalidAnswer: the text is not JSON, was cut at max_tokens, or was blocked by a
                guardrail: then the error has the ``flags``.
        """
        if self.value is not None:
            return self.value
        try:
            return parsed_json(self.text)
        except InvalidAnswer as error:
            if self.flags:
                raise InvalidAnswer(
                    f"{error}; a guardrail flagged {', '.join(self.flags)}", flags=self.flags
                ) from None
            if self.stop_reason == "length":
                raise InvalidAnswer(
                    f"the answer was cut after {self.usage.output_tokens} tokens; "
                    "pass a higher max_tokens"
                ) from None
            raise error

    def message(self) -> dict[str, Any]:
        """Return the answer as a message, to continue the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in self.tool_calls
            ]
        return message


class Model(Protocol):
    """A model, wherever it runs."""

    @property
    def name(self) -> str:
        """The id of the model at the service."""
        ...

    @property
    def price(self) -> ModelPrice | None:
        """The price of its tokens; None if it is not known."""
        ...

    @property
    def max_tokens(self) -> int:
        """The limit on tokens of an answer, if the request has none."""
        ...

    def tokens_max(self, request: Request) -> tuple[int, int]:
        """Return upper bounds for the input and output tokens of a request, to reserve them."""
        ...

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        """Ask the model once, without a retry, and pass the text to ``emit`` as it comes.

        The pieces passed to ``emit`` make up the text of the answer. After an error or a
        cancellation there are no more pieces. An answer that was paid for is always returned, even
        if it was cut or is not the JSON that was asked for.

        Raises:
            ModelUnavailable: another attempt may succeed. This one may have been charged.
            ModelRefused: another attempt will not succeed.
        """
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """A model that can count the input tokens of a request before it is asked. It is optional."""

    async def count_tokens(self, request: Request) -> int | None:
        """Return how many input tokens the service will charge; None if that cannot be counted.

        The count must be exact or too high. It must not ask the model. It may raise anything: then
        the request counts with the upper bound of `Model.tokens_max`.
        """
        ...


def input_bytes(request: Request) -> int | None:
    """Return the bytes of a request's text; None if it also has images or binary documents."""
    for message in request.messages:
        if not isinstance(message["content"], str) and any(
            part["type"] == "image"
            or (part["type"] == "document" and not part["media_type"].startswith("text/"))
            for part in message["content"]
        ):
            return None
    # The upper bound has the brackets of each list of tool calls, even of an empty one.
    framing = _PROMPT_OVERHEAD_TOKENS + (_MESSAGE_OVERHEAD_TOKENS + 2) * len(request.messages)
    if request.tools or request.output:
        framing += _TOOLS_OVERHEAD_TOKENS
    return input_tokens_max(request, image_tokens=0, document_tokens=0) - framing


def input_tokens_max(request: Request, *, image_tokens: int, document_tokens: int) -> int:
    """Return an upper bound for the input tokens of a request.

    No tokenizer in use makes more than one token of a byte. Images and documents count with the
    highest number of tokens that the service charges for one. Text documents count by their bytes.
    """
    total = _PROMPT_OVERHEAD_TOKENS + _MESSAGE_OVERHEAD_TOKENS * len(request.messages)
    for message in request.messages:
        total += len(msgspec.json.encode(message.get("tool_calls", ())))
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                total += len(part["text"].encode())
            elif part["type"] == "image":
                total += image_tokens
            elif part["media_type"].startswith("text/"):
                total += len(part["data"]) + len(part["name"].encode())
            else:
                total += document_tokens
    if request.tools or request.output:
        total += _TOOLS_OVERHEAD_TOKENS + len(msgspec.json.encode([request.tools, request.output]))
    return total


def tokens_max(
    request: Request, *, image_tokens: int, context_tokens: int, max_tokens: int
) -> tuple[int, int]:
    """Return upper bounds for the input and output tokens of a request.

    ``max_tokens`` is the limit on the answer if the request has none.
    """
    bound = input_tokens_max(request, image_tokens=image_tokens, document_tokens=context_tokens)
    return min(bound, context_tokens), request.params.get("max_tokens", max_tokens)


def parsed_json(text: str) -> Any:
    """Return the text of a model, or the first code fence in it, parsed as JSON.

    Raises:
        InvalidAnswer: the text is not JSON, or has a value that cannot be stored.
    """
    try:
        return _decoded_json(text)
    except ValueError as error:
        reason = error
    begins = _CODE_FENCE_START.search(text)
    # If the first fence has no end, a later one has none either.
    if begins is not None and (fenced := _CODE_FENCE_BODY.match(text, begins.end())):
        try:
            return _decoded_json(fenced[1])
        except ValueError as error:
            reason = error
    # The message says where the JSON is invalid. It does not quote the untrusted answer.
    raise InvalidAnswer(f"the answer is not JSON: {reason}; it has {len(text):,} characters")


def _decoded_json(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
        _check_shape(value)
        msgspec.msgpack.encode(value)
    except OverflowError:
        raise ValueError("it has an int beyond 64 bits") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _check_shape(value: Any) -> None:
    level: list[Any] = [value]
    containers = 0
    for _ in range(JSON_DEPTH_MAX + 1):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(cast(dict[str, Any], each).values())
            elif isinstance(each, list):
                inner.extend(cast(list[Any], each))
            else:
                continue
            containers += 1
            if containers > JSON_CONTAINERS_MAX:
                raise ValueError(f"it has more than {JSON_CONTAINERS_MAX} lists and objects")
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested deeper than {JSON_DEPTH_MAX} levels")
