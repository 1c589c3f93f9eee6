"""A deterministic model without a network, for tests, demos and simulations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast.clock import Clock
from holdfast.errors import InvalidRequest, ModelRefused
from holdfast.graph.values import durable
from holdfast.integrations.schema_samples import smallest_value
from holdfast.model.invocation import (
    Answer,
    Emit,
    Request,
    StopReason,
    ToolCall,
    Usage,
    input_tokens_max,
)
from holdfast.model.pricing import ModelPrice
from holdfast.records.prompt_hash import prompt_hash

__all__ = ["Offline", "OfflineAnswer"]

OfflineAnswer: TypeAlias = object
"""A scripted answer: a text, tool calls, a complete answer, an error to raise, or a value.

A value becomes JSON, for ``output=T``: a dict, or an object such as a ``T``.
"""

_WORDS = (
    "amber",
    "cedar",
    "dune",
    "ember",
    "fern",
    "grove",
    "heath",
    "inlet",
    "oak",
    "pine",
    "reef",
)
_WORD = re.compile(r"\s*\S+|\s+")
_BYTES_PER_TOKEN = 4
# The model ignores images, but the reservation for one must not be too small.
_IMAGE_TOKENS = 100


class Offline:
    """A model without a network.

    ``answers`` is a list, which is used in its order, or a function from a request to an answer.
    Without it the answer follows from the hash of the request, the same in every process: a few
    words, the smallest value that fits the schema, or a call of the first tool until its result is
    there. A token is four bytes, rounded up. ``counts_tokens`` gives it a token counter for
    budgets, as some services have one. With a clock, each word takes ``seconds_per_word``.
    """

    def __init__(
        self,
        answers: Sequence[OfflineAnswer] | Callable[[Request], Any] | None = None,
        *,
        name: str = "offline",
        price: ModelPrice | None = None,
        max_tokens: int = 1024,
        counts_tokens: bool = False,
        clock: Clock | None = None,
        seconds_per_word: float = 0.0,
    ) -> None:
        """Make a model that gives these answers; without any, it makes up short ones."""
        self._answers = answers if callable(answers) else None
        self._script: Iterator[OfflineAnswer] | None = None
        if answers is not None and not callable(answers):
            # A text is a sequence, too: its letters would become the answers.
            if isinstance(answers, str) or not isinstance(answers, Sequence):
                raise InvalidRequest(
                    f"answers must be a list or a function, got {answers!r:.80}", field="answers"
                )
            self._script = iter(answers)
        self.name: Final = name
        self.price: Final = price
        self.max_tokens: Final = max_tokens
        self._counts_tokens = counts_tokens
        self._clock = clock
        self._seconds_per_word = seconds_per_word

    def tokens_max(self, request: Request) -> tuple[int, int]:
        documents = sum(len(part["data"]) for part in _parts(request, "document"))
        bound = input_tokens_max(request, image_tokens=_IMAGE_TOKENS, document_tokens=documents)
        return bound, request.params.get("max_tokens", self.max_tokens)

    async def count_tokens(self, request: Request) -> int | None:
        """Return the input tokens that an answer will report; None unless ``counts_tokens``."""
        return max(_input_tokens(request), 1) if self._counts_tokens else None

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        given = await self._next_answer(request)
        if isinstance(given, Exception):
            raise given
        answer = (
            cast(Answer, given) if isinstance(given, Answer) else self._build_answer(request, given)
        )
        for word in _WORD.findall(answer.text):
            if self._clock is not None:
                await self._clock.sleep(self._seconds_per_word)
            if emit is not None:
                emit(word)
        return answer

    async def _next_answer(self, request: Request) -> OfflineAnswer:
        if self._answers is not None:
            given = self._answers(request)
            return await given if inspect.isawaitable(given) else given
        if self._script is None:
            return _derived_answer(request)
        for given in self._script:
            return given
        raise ModelRefused(f"{self.name} has no further answer in its script", reason="script")

    def _build_answer(self, request: Request, given: Any) -> Answer:
        text, calls = "", ()
        if isinstance(given, str):
            text = given
        elif isinstance(given, ToolCall):
            calls = (given,)
        elif _are_tool_calls(given):
            calls = tuple(cast(Sequence[ToolCall], given))
        else:
            text = msgspec.json.encode(durable(given)).decode()
        stop_reason: StopReason = "tool_calls" if calls else "end"
        output_tokens = _tokens(text.encode()) + sum(
            _tokens(msgspec.json.encode(call)) for call in calls
        )
        max_tokens = request.params.get("max_tokens", self.max_tokens)
        if output_tokens > max_tokens:
            cut = text.encode()[: max_tokens * _BYTES_PER_TOKEN].decode(errors="ignore")
            text, calls, output_tokens, stop_reason = cut, (), max_tokens, "length"
        return Answer.to(
            request,
            text=text,
            tool_calls=calls,
            usage=Usage(_input_tokens(request), output_tokens),
            stop_reason=stop_reason,
            model=self.name,
        )


def _are_tool_calls(given: Any) -> bool:
    if not isinstance(given, Sequence) or not given:
        return False
    return all(isinstance(each, ToolCall) for each in cast(Sequence[object], given))


def _derived_answer(request: Request) -> OfflineAnswer:
    digest = prompt_hash(request)
    tools = {tool.name: tool for tool in request.tools}
    last = request.messages[-1]["role"]
    if tools and (last != "tool" or request.tool_choice not in (None, "auto")):
        chosen = tools.get(request.tool_choice or "", request.tools[0])
        return ToolCall(f"call_{digest.hex()}", chosen.name, smallest_value(chosen.parameters))
    if request.output is not None:
        return smallest_value(request.output)
    count = 6 + digest[0] % 10
    return " ".join(_WORDS[digest[index] % len(_WORDS)] for index in range(1, count))


def _input_tokens(request: Request) -> int:
    texts = [
        message["content"] if isinstance(message["content"], str) else ""
        for message in request.messages
    ]
    total = sum(_tokens(text.encode()) for text in texts)
    total += sum(_tokens(part["text"].encode()) for part in _parts(request, "text"))
    total += sum(_tokens(part["data"]) for part in _parts(request, "document"))
    total += _IMAGE_TOKENS * len(_parts(request, "image"))
    if request.tools or request.output:
        total += _tokens(msgspec.json.encode([request.tools, request.output]))
    return total


def _parts(request: Request, kind: str) -> list[dict[str, Any]]:
    return [
        part
        for message in request.messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == kind
    ]


def _tokens(data: bytes) -> int:
    return -(-len(data) // _BYTES_PER_TOKEN)
