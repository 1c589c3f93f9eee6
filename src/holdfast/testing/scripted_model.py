"""A model that gives the answers of a test, and remembers what it was asked."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest, ModelRefused
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import Answer, Emit, Request, Usage
from holdfast.model.pricing import ModelPrice
from holdfast.testing.answers import Raises

__all__ = ["ScriptedModel", "scripted"]

_SHOWN_CHARS = 300


class ScriptedModel(Offline):
    """A model that gives each of its answers once, in their order.

    An answer is a text; a value, which becomes JSON for ``output=T``; a `ToolCall` or a list of
    them; a whole `Answer`; an error to raise; or a function from the `Request` to one of these.
    """

    def __init__(
        self,
        answers: Sequence[Any] = (),
        *,
        name: str = "scripted",
        price: ModelPrice | None = None,
        usage: Usage | None = None,
        max_tokens: int = 1024,
    ) -> None:
        """Take the answers. Without ``usage``, a token is four bytes.

        Raises:
            InvalidRequest: ``answers`` is not a list.
        """
        if isinstance(answers, str) or not isinstance(answers, Sequence):
            raise InvalidRequest(
                f"answers must be a list of answers, got {answers!r:.80}", field="answers"
            )
        super().__init__(self._take, name=name, price=price, max_tokens=max_tokens)
        self._left: list[Any] = list(answers)
        self._usage = usage
        self.requests: list[Request] = []
        """What the model was asked, in order."""

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        """Give the next answer.

        Raises:
            ModelRefused: there is none left; the message shows the question.
        """
        answer = await super().answer(request, emit)
        if self._usage is None:
            return answer
        return msgspec.structs.replace(answer, usage=self._usage)

    def assert_all_used(self) -> None:
        """Check that every answer was given.

        Raises:
            AssertionError: some are left.
        """
        if self._left:
            raise AssertionError(
                f"model {self.name!r} was asked {len(self.requests)} times, and has "
                f"{len(self._left)} answers left: {self._left!r:.300}"
            )

    async def _take(self, request: Request) -> Any:
        self.requests.append(request)
        if not self._left:
            raise ModelRefused(
                f"model {self.name!r} has no answer left for question {len(self.requests)}: "
                f"{_question(request)}",
                reason="script",
            )
        given: Any = self._left.pop(0)
        if callable(given) and not isinstance(given, type):
            given = given(request)
            if inspect.isawaitable(given):
                given = await given
        return _offline_answer(given)


def scripted(*answers: Any) -> ScriptedModel:
    """Return a model that gives these answers, in this order: see `ScriptedModel`."""
    return ScriptedModel(answers)


def _offline_answer(given: Any) -> Any:
    if isinstance(given, Raises):
        given = given.error
    if isinstance(given, type) and issubclass(given, Exception):
        given = given()
    return cast(Any, given)


def _question(request: Request) -> str:
    last = request.messages[-1]
    content = last["content"]
    return f"{last['role']}: {content!r:.{_SHOWN_CHARS}}"
