"""Validates the answers of models before they are charged or recorded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import AnswerTooLarge, InvalidAnswer
from holdfast.model.answer_limits import (
    ANSWER_BYTES_MAX,
    FLAG_CHARS_MAX,
    FLAGS_MAX,
    MODEL_NAME_CHARS_MAX,
    TOOL_CALLS_MAX,
)
from holdfast.model.invocation import Answer, ToolCall, Usage
from holdfast.model.prompt import is_tool_call_id, is_tool_name

__all__ = ["validated_answer"]

# No tool can have this name: `check_tool` refuses it.
_INVALID_TOOL_NAME = "none"


def validated_answer(answer: Answer, tokens: tuple[int, int]) -> Answer:
    """Return an answer that can be charged, recorded and sent to the model again.

    ``tokens`` are the input and output tokens that were reserved. An answer that reports an
    impossible usage is charged with the reservation.

    Raises:
        AnswerTooLarge: the answer has too much text or too many tool calls.
        InvalidAnswer: the value is not an Answer, or its text cannot be stored.
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
        raise InvalidAnswer(
            "a string with a lone surrogate cannot be stored", field="text"
        ) from None
    size = text_bytes + sum(map(_written_bytes, answer.tool_calls))
    if size > ANSWER_BYTES_MAX:
        raise AnswerTooLarge(
            f"an answer must not be larger than {ANSWER_BYTES_MAX} bytes, got {size}",
            field="text" if text_bytes > ANSWER_BYTES_MAX else "tool_calls",
            limit=ANSWER_BYTES_MAX,
        )
    return msgspec.structs.replace(
        answer,
        tool_calls=_cleaned_calls(answer.tool_calls),
        usage=_trusted_usage(answer, tokens),
        model=_cleaned_text(answer.model, MODEL_NAME_CHARS_MAX),
        flags=_cleaned_flags(answer.flags),
        passed=None,  # not for an adapter to say
    )


def _written_bytes(call: ToolCall) -> int:
    """Return the size of a call's arguments; 0 if they cannot be encoded (refused later)."""
    try:
        return len(msgspec.json.encode(call.arguments)) + len(call.malformed.encode())
    except (TypeError, ValueError, OverflowError, RecursionError):
        return 0


def _cleaned_text(text: object, chars_max: int) -> str:
    """Return a short text, such as the name of a model, so that it is safe to store and show."""
    if not isinstance(text, str):
        return ""
    return text[:chars_max].encode(errors="replace").decode()


def _cleaned_flags(flags: Sequence[object]) -> tuple[str, ...]:
    if not flags:
        return ()
    return tuple(_cleaned_text(flag, FLAG_CHARS_MAX) for flag in flags[:FLAGS_MAX])


def _cleaned_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with unique ids and valid tool names."""
    admitted: list[ToolCall] = []
    taken: set[str] = set()
    for number, call in enumerate(calls):
        id = call.id
        if not is_tool_call_id(id) or id in taken:
            id = _free_id(number, taken)
        taken.add(id)
        if is_tool_name(call.name):
            admitted.append(msgspec.structs.replace(call, id=id))
        else:
            admitted.append(ToolCall(id, _INVALID_TOOL_NAME, malformed=f"{call.name!r:.200}"))
    return tuple(admitted)


def _free_id(number: int, taken: set[str]) -> str:
    while (id := f"call_{number}") in taken:
        number += 1
    return id


def _trusted_usage(answer: Answer, tokens: tuple[int, int]) -> Usage:
    usage = answer.usage
    if usage == Usage() and answer.flags and answer.stop_reason == "filtered":
        return usage  # a guardrail blocked the prompt, and the model was not asked
    # Every prompt has a token. A usage of none would let a service answer for ever within a budget.
    output_tokens_min = 1 if answer.text or answer.tool_calls else 0
    if (
        _is_int_within(usage.input_tokens, 1, tokens[0])
        and _is_int_within(usage.output_tokens, output_tokens_min, tokens[1])
        and _is_int_within(usage.cached_input_tokens, 0, usage.input_tokens)
    ):
        return usage
    return Usage(*tokens)


def _is_int_within(count: object, min_value: int, max_value: int) -> bool:
    return type(count) is int and min_value <= count <= max_value
