"""Counts in each process what models were asked, and what that cost."""

from __future__ import annotations

import msgspec

from holdfast.model.invocation import Usage
from holdfast.model.spending import NO_SPENDING, Spending

__all__ = ["ModelUsage", "ModelUsageCounter"]


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the answers of one model took."""

    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spending: Spending = NO_SPENDING
    """What they cost; nothing is counted for a model without a price."""


class ModelUsageCounter:
    """Counts the answers of models that this process asked, by the name of the model."""

    def __init__(self) -> None:
        self.by_model: dict[str, ModelUsage] = {}

    def add(self, model: str, usage: Usage, spending: Spending) -> None:
        """Count an answer of a model."""
        known = self.by_model.get(model) or ModelUsage()
        self.by_model[model] = ModelUsage(
            answers=known.answers + 1,
            input_tokens=known.input_tokens + usage.input_tokens,
            output_tokens=known.output_tokens + usage.output_tokens,
            spending=known.spending + spending,
        )
