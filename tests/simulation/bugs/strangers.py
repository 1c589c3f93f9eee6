"""Bugs to plant in what is believed of callers and of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.engine import starting
from holdfast.model import answers
from holdfast.model.pricing import Usage
from holdfast.records.head import head_of
from holdfast.records.settings import UserHash
from tests.simulation.bugs.planting import bug

_STRANGERS = {"strangers": 1.0}
_ABSURD = {"absurd_usage": 1.0}


@bug(**_STRANGERS)
def a_run_handed_to_another_user(patch: pytest.MonkeyPatch) -> None:
    """The id and the input are compared, and the user is not."""
    same_run = starting.same_run

    def heedless(item: Mapping[str, Any], hash: bytes, run: Any, *, user: Any) -> Any:
        standing = head_of(item).user
        owner = None if standing is None else UserHash(standing, standing)
        return same_run(item, hash, run, user=owner)

    patch.setattr(starting, "same_run", heedless)


@bug(**_STRANGERS)
def no_user_is_like_any_user(patch: pytest.MonkeyPatch) -> None:
    same_run = starting.same_run

    def heedless(item: Mapping[str, Any], hash: bytes, run: Any, *, user: Any) -> Any:
        standing = head_of(item).user
        if user is None and standing is not None:
            user = UserHash(standing, standing)
        return same_run(item, hash, run, user=user)

    patch.setattr(starting, "same_run", heedless)


@bug("calling", **_ABSURD)
def a_usage_below_nothing_counts(patch: pytest.MonkeyPatch) -> None:
    admitted = answers._admitted_usage

    def gullible(usage: Usage, tokens: tuple[int, int], model: str) -> Usage:
        negative = min(usage.input_tokens, usage.output_tokens) < 0
        return usage if negative else admitted(usage, tokens, model)

    patch.setattr(answers, "_admitted_usage", gullible)


@bug("calling", **_ABSURD)
def a_usage_beyond_what_was_reserved_counts(patch: pytest.MonkeyPatch) -> None:
    admitted = answers._admitted_usage

    def gullible(usage: Usage, tokens: tuple[int, int], model: str) -> Usage:
        large = max(usage.input_tokens, usage.output_tokens) > max(tokens)
        return usage if large else admitted(usage, tokens, model)

    patch.setattr(answers, "_admitted_usage", gullible)
