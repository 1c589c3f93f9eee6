"""What a test provides in the place of calls, signals, models and children."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

__all__ = [
    "REAL",
    "InTurn",
    "NotProvided",
    "Raises",
    "RealCalls",
    "TimedOut",
    "give_answer",
    "in_turn",
    "raises",
    "timed_out",
]


class NotProvided(BaseException):
    """The node asked for something that the test did not provide.

    A BaseException, so that no ``except Exception`` in a node can swallow it.
    """


class Raises(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    error: BaseException


class TimedOut(msgspec.Struct, frozen=True):
    """The answer to a wait that nothing comes in time."""


class RealCalls(msgspec.Struct, frozen=True):
    """Calls the functions themselves."""


REAL: Final = RealCalls()
"""As ``calls``: the functions themselves are called, with all that they do to the world."""

timed_out: Final = TimedOut()
"""As the answer to a wait: its ``max_wait`` is over before the signal comes."""


def raises(error: BaseException | type[BaseException]) -> Raises:
    """Return the answer that a call, a model or a child fails with this error."""
    return Raises(error if isinstance(error, BaseException) else error())


class InTurn:
    """Several answers, one for each time that the node asks."""

    def __init__(self, answers: tuple[Any, ...]) -> None:
        self._answers = list(answers)
        self._count = len(answers)

    def next(self, what: str) -> Any:
        """Return the next answer.

        Raises:
            NotProvided: there is none left.
        """
        if not self._answers:
            raise NotProvided(
                f"{what} is asked for once more, and in_turn(…) has only {self._count} answers"
            )
        return self._answers.pop(0)


def in_turn(*answers: Any) -> InTurn:
    """Return answers of which each is given once, in this order."""
    return InTurn(answers)


async def give_answer(
    answer: Any,
    what: str,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
) -> Any:
    """Return what a provided answer gives: itself, or what it returns if it is a function.

    A function with a parameter ``idempotency_key`` gets ``key``.
    """
    if isinstance(answer, InTurn):
        answer = answer.next(what)
    if callable(answer):
        function = cast(Callable[..., Any], answer)
        given = dict(kwargs or {})
        if key is not None and _takes_key(function):
            given["idempotency_key"] = key
        answer = function(*args, **given)
        if inspect.isawaitable(answer):
            answer = await answer
    if isinstance(answer, Raises):
        # The same error may be raised again: its traceback must not grow.
        raise answer.error.with_traceback(None)
    return answer


def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
