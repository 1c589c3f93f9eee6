"""What a model is asked, what it answers, and what an adapter to one has to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeAlias, cast

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

__all__ = [
    "Answer",
    "Emit",
    "Model",
    "Request",
    "StopReason",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "input_tokens_max",
    "parsed_json",
    "tokens_max",
]

Emit: TypeAlias = Callable[[str], None]
"""Is told the text of an answer as it comes, in the event loop's thread; it must not raise."""

StopReason: TypeAlias = Literal["end", "tool_calls", "length", "filtered"]
"""Why a model stopped: it was done, it waits for its tools, it may say no more, it was made to."""

_TOOLS_MAX = 128
# Two of them, each of which takes time in proportion to the text: as one, it took the square of it
# for what a model can be made to write.
_CODE_FENCE_START = re.compile(r"```[a-zA-Z]*[ \t]*\n")
_CODE_FENCE_BODY = re.compile(r"(.*)\n[ \t]*```", re.DOTALL)

# What a service puts around a prompt; each is more than any that we know of asks.
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
    """The JSON schema of its arguments, which is that of an object."""

    def __post_init__(self) -> None:
        check_tool(self.name, self.description, self.parameters)


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that a model wants to have called."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    malformed: str = ""
    """What the model wrote instead, where that is not a JSON object."""

    @classmethod
    def read(cls, id: str, name: str, text: str) -> ToolCall:
        """Return the call with the arguments that a model wrote as text."""
        try:
            # Models leave out the braces where a tool takes nothing.
            arguments: Any = parsed_json(text) if text.strip() else {}
        except InvalidAnswer:
            arguments = None
        if isinstance(arguments, dict):
            return cls(id, name, cast(dict[str, Any], arguments))
        return cls(id, name, malformed=text)


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to a model; `Request.of` makes it of what a user wrote."""

    model: str
    """The model's `name`: its id at the service and not what it is called here, so that another one
    under the same name is another question."""
    messages: list[dict[str, Any]]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    """``auto`` or None: as the model likes; ``any``: one of them; else the name of the one."""
    output: dict[str, Any] | None = None
    """The JSON schema of an object, where the answer shall be one."""
    params: dict[str, Any] = {}
    """max_tokens, temperature, top_p, stop, seed; under ``extra`` what only the service knows."""
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
        """Return the request in the form in which it is sent, hashed and kept.

        Raises:
            InvalidPrompt: a message, a tool or a parameter is wrong; ``field`` says which.
        """
        if not isinstance(tools, Sequence) or not all(isinstance(t, ToolSpec) for t in tools):
            raise InvalidPrompt(
                f"tools are a list of ToolSpec, as tool_of(function)[0] is one, not {tools!r:.80}",
                field="tools",
            )
        if len(tools) > _TOOLS_MAX:
            raise InvalidPrompt(
                f"{len(tools)} tools are more than {_TOOLS_MAX}",
                field="tools",
                size=len(tools),
                limit=_TOOLS_MAX,
            )
        names = [tool.name for tool in tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidPrompt(f"two tools are called {name}", field=f"tools[{index}].name")
        if tool_choice is not None and (not names or tool_choice not in ("auto", "any", *names)):
            raise InvalidPrompt(
                f"tool_choice is auto, any or the name of a tool, not {tool_choice!r:.80}",
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


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model answered; this is what the journal keeps."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop_reason: StopReason = "end"
    model: str = ""
    """Which model it was, as the service calls it."""
    value: Any = None
    """What the text says as JSON, where a schema was given; None where it is not JSON."""

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
    ) -> Answer:
        """Return the answer to a request, with its value where one was asked for."""
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
        )

    def json(self) -> Any:
        """Return what the answer says as JSON, also if that stands in a fence.

        Raises:
            InvalidAnswer: it is not JSON, or was cut before it became JSON.
        """
        if self.value is not None:
            return self.value
        try:
            return parsed_json(self.text)
        except InvalidAnswer as error:
            if self.stop_reason == "length":
                raise InvalidAnswer(
                    f"the answer was cut after {self.usage.output_tokens} tokens; "
                    "give it more with max_tokens"
                ) from None
            raise error

    def message(self) -> dict[str, Any]:
        """Return the answer as the message by which a conversation goes on."""
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
        """What the service calls the model."""
        ...

    @property
    def price(self) -> ModelPrice | None:
        """What its tokens cost; None where nobody knows."""
        ...

    @property
    def max_tokens(self) -> int:
        """How many tokens an answer has at most, if a request does not say."""
        ...

    def tokens_max(self, request: Request) -> tuple[int, int]:
        """Return more tokens than the request can take, in and out: what is reserved for it."""
        ...

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        """Ask once, without trying again, and tell ``emit`` the text as it comes.

        What ``emit`` was told, put together, is the answer's text; after an error or a
        cancellation it is told nothing more. An answer that was paid is returned whatever it
        says: also one that was cut, or is not the JSON that was asked for.

        Raises:
            ModelUnavailable: it may succeed later. It may have been paid nevertheless.
            ModelRefused: it will not.
        """
        ...


def input_tokens_max(request: Request, *, image_tokens: int, document_tokens: int) -> int:
    """Return more tokens than the prompt of a request can have.

    No tokenizer in use makes more than one token of a byte. Pictures and documents are counted by
    what the service asks for one at most, except documents that are text.
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
    """Return more tokens than a request can take, in and out, of a model with such a context.

    ``max_tokens`` is how long an answer may be where the request does not say.
    """
    bound = input_tokens_max(request, image_tokens=image_tokens, document_tokens=context_tokens)
    return min(bound, context_tokens), request.params.get("max_tokens", max_tokens)


def parsed_json(text: str) -> Any:
    """Return what a model wrote as JSON, the whole or what stands in its fence.

    Raises:
        InvalidAnswer: it is not JSON, or holds what cannot be kept.
    """
    try:
        return _decoded_json(text)
    except ValueError as error:
        reason = error
    begins = _CODE_FENCE_START.search(text)
    # If nothing ends the first fence, nothing ends a later one.
    if begins is not None and (fenced := _CODE_FENCE_BODY.match(text, begins.end())):
        try:
            return _decoded_json(fenced[1])
        except ValueError as error:
            reason = error
    # It says where the JSON breaks, and quotes nothing: an answer may hold anything.
    raise InvalidAnswer(f"the answer is not JSON: {reason}; it has {len(text):,} letters")


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
