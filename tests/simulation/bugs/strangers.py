"""Bugs to plant in what is believed of callers and of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast.engine.runs import starting
from holdfast.model import answer_validation
from holdfast.model.invocation import Answer
from holdfast.model.pricing import Usage
from holdfast.records.head import head_of
from holdfast.records.settings import UserHash
from tests.simulation.bugs.planting import bug
from tests.simulation.oracle import MOST_TOKENS

_STRANGERS = {"strangers": 1.0}
_ABSURD = {"absurd_usage": 1.0}


@bug(**_STRANGERS)
def a_run_handed_to_another_user(patch: pytest.MonkeyPatch) -> None:
    """The id and the input are compared, and the user is not."""
    same_run = starting.check_same_run

    def heedless(item: Mapping[str, Any], hash: bytes, run: Any, *, graph: str, user: Any) -> Any:
        standing = head_of(item).user
        owner = None if standing is None else UserHash(standing, standing)
        return same_run(item, hash, run, graph=graph, user=owner)

    patch.setattr(starting, "check_same_run", heedless)


@bug(**_STRANGERS)
def no_user_is_like_any_user(patch: pytest.MonkeyPatch) -> None:
    same_run = starting.check_same_run

    def heedless(item: Mapping[str, Any], hash: bytes, run: Any, *, graph: str, user: Any) -> Any:
        standing = head_of(item).user
        if user is None and standing is not None:
            user = UserHash(standing, standing)
        return same_run(item, hash, run, graph=graph, user=user)

    patch.setattr(starting, "check_same_run", heedless)


@bug("calling", **_ABSURD)
def a_usage_below_nothing_counts(patch: pytest.MonkeyPatch) -> None:
    _believe(patch, lambda usage: min(usage.input_tokens, usage.output_tokens) < 0)


@bug("calling", **_ABSURD)
def a_usage_of_nothing_counts(patch: pytest.MonkeyPatch) -> None:
    _believe(patch, lambda usage: 0 in (usage.input_tokens, usage.output_tokens))


@bug("calling", **_ABSURD)
def a_usage_beyond_what_was_reserved_counts(patch: pytest.MonkeyPatch) -> None:
    _believe(patch, lambda usage: max(usage.input_tokens, usage.output_tokens) > MOST_TOKENS)


def _believe(patch: pytest.MonkeyPatch, absurd: Callable[[Usage], bool]) -> None:
    admitted = answer_validation._trusted_usage

    def gullible(answer: Answer, tokens: tuple[int, int]) -> Usage:
        return answer.usage if absurd(answer.usage) else admitted(answer, tokens)

    patch.setattr(answer_validation, "_trusted_usage", gullible)
