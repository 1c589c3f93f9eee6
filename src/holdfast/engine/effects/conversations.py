"""Finds the earlier call that a prompt continues, so that its record holds only new messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.invocation import Answer
from holdfast.records.codec import canonical_hash

__all__ = ["Conversations", "Prompt"]


class Prompt(msgspec.Struct, frozen=True):
    """The messages of one call, as what is new after an earlier call of the visit."""

    after: str
    """The earlier call; empty if there is none."""
    new: list[dict[str, Any]]
    digest: bytes
    """A hash of all messages."""


class Conversations:
    """The answered prompts of one visit, by a hash of their messages and the answer."""

    def __init__(self) -> None:
        self._answered: dict[bytes, str] = {}

    def prompt_of(self, messages: Sequence[dict[str, Any]]) -> Prompt:
        """Return messages as what is new after the longest earlier prompt with its answer."""
        digest, after, first_new = b"", "", 0
        for count, message in enumerate(messages, start=1):
            digest = canonical_hash([digest, message])
            call = self._answered.get(digest)
            if call is not None:
                after, first_new = call, count
        return Prompt(after, list(messages[first_new:]), digest)

    def add_answer(self, call: str, prompt: Prompt, result: Any) -> None:
        """Note the answer to a prompt: later prompts may continue it."""
        try:
            message = msgspec.convert(result, Answer).message()
        except msgspec.ValidationError:
            return  # the caller gets the error
        self._answered[canonical_hash([prompt.digest, message])] = call
