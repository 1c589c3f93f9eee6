"""Answers of models, checked before anything is charged or recorded: they are hostile input."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import AnswerTooLarge, InvalidAnswer
from holdfast.model.bounds import ANSWER_BYTES_MAX, MODEL_LETTERS_MAX, TOOL_CALLS_MAX
from holdfast.model.invocation import Answer, ToolCall, Usage
from holdfast.model.prompt import is_id, is_tool_name

__all__ = ["admitted_answer"]

# No tool can have this name, as `admitted_tool` sees to.
_NO_TOOL = "none"


def admitted_answer(answer: Answer, tokens: tuple[int, int]) -> Answer:
    """Return an answer that can be charged, recorded and told to the model again.

    ``tokens`` are what was reserved for it, in and out: where its usage is out of these bounds, its
    usage is what was reserved.

    Raises:
        AnswerTooLarge: it says more, or calls more tools, than an answer may.
        InvalidAnswer: it is none, or cannot be kept.
    """
    if not isinstance(answer, Answer) or not isinstance(answer.text, str):
        raise InvalidAnswer(f"a model's adapter must return an Answer, got {type(answer).__name__}")
    if len(answer.tool_calls) > TOOL_CALLS_MAX:
        raise AnswerTooLarge(
            f"an answer must not call more than {TOOL_CALLS_MAX} tools, "
            f"got {len(answer.tool_calls)} calls",
            field="tool_calls",
            limit=TOOL_CALLS_MAX,
        )
    try:
        text_bytes = len(answer.text.encode())
    except UnicodeEncodeError:
        raise InvalidAnswer("text with a lone surrogate cannot be kept", field="text") from None
    size = text_bytes + sum(map(_written_bytes, answer.tool_calls))
    if size > ANSWER_BYTES_MAX:
        raise AnswerTooLarge(
            f"an answer must not be larger than {ANSWER_BYTES_MAX} bytes, got {size}",
            field="text" if text_bytes > ANSWER_BYTES_MAX else "tool_calls",
            limit=ANSWER_BYTES_MAX,
        )
    return msgspec.structs.replace(
        answer,
        tool_calls=_admitted_calls(answer.tool_calls),
        usage=_admitted_usage(answer, tokens),
        model=_admitted_model(answer.model),
    )


def _written_bytes(call: ToolCall) -> int:
    """Return how much a model wrote for a call; what cannot be kept is refused when it is kept."""
    try:
        return len(msgspec.json.encode(call.arguments)) + len(call.malformed.encode())
    except (TypeError, ValueError, OverflowError, RecursionError):
        return 0


def _admitted_model(model: object) -> str:
    """Return what the service calls the model: it is shown, kept and logged."""
    if not isinstance(model, str):
        return ""
    return model[:MODEL_LETTERS_MAX].encode(errors="replace").decode()


def _admitted_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with ids that tell them apart, and with names that a prompt can hold."""
    admitted: list[ToolCall] = []
    taken: set[str] = set()
    for number, call in enumerate(calls):
        id = call.id
        if not is_id(id) or id in taken:
            id = _free_id(number, taken)
        taken.add(id)
        if is_tool_name(call.name):
            admitted.append(msgspec.structs.replace(call, id=id))
        else:
            admitted.append(ToolCall(id, _NO_TOOL, malformed=f"{call.name!r:.200}"))
    return tuple(admitted)


def _free_id(number: int, taken: set[str]) -> str:
    while (id := f"call_{number}") in taken:
        number += 1
    return id


def _admitted_usage(answer: Answer, tokens: tuple[int, int]) -> Usage:
    usage = answer.usage
    # Every question has a token. Without any, a service answers for ever within a budget.
    said_least = 1 if answer.text or answer.tool_calls else 0
    if (
        _is_count(usage.input_tokens, 1, tokens[0])
        and _is_count(usage.output_tokens, said_least, tokens[1])
        and _is_count(usage.cached_input_tokens, 0, usage.input_tokens)
    ):
        return usage
    return Usage(*tokens)


def _is_count(count: object, least: int, most: int) -> bool:
    return type(count) is int and least <= count <= most
