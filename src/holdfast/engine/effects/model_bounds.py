"""Smaller bounds for the cost of a question than its upper bound, for budgets that need one."""

from __future__ import annotations

import asyncio

from holdfast.display import get_logger
from holdfast.engine.effects.token_estimates import TokenEstimates
from holdfast.model.invocation import Model, Request, TokenCounter, Usage
from holdfast.model.spending import Spending
from holdfast.records.keys import RunKey

__all__ = ["ModelBounds", "model_spending"]

_log = get_logger("holdfast.models")
_COUNT_SECONDS_MAX = 10.0


class ModelBounds:
    """The bounds of one question to one model: see `SmallerBounds`."""

    def __init__(
        self,
        model: Model,
        request: Request,
        tokens_max: tuple[int, int],
        estimates: TokenEstimates,
        run: RunKey,
    ) -> None:
        self._model = model
        self._request = request
        self._input_max, self._output_max = tokens_max
        self._estimates = estimates
        self._run = run
        # The input tokens of the last smaller bound.
        self._smaller_input: int | None = None
        self.is_estimated = False
        """Whether the last smaller bound is an estimate, which the call may exceed."""

    @property
    def min_spending(self) -> Spending:
        """The cost with one input token: no bound is smaller."""
        return model_spending(self._model, (1, self._output_max))

    async def count(self) -> Spending | None:
        """Ask the model's own counter; return None if it has none, or counts no less."""
        counter = self._model
        if not isinstance(counter, TokenCounter):
            return None
        try:
            async with asyncio.timeout(_COUNT_SECONDS_MAX):
                counted: object = await counter.count_tokens(self._request)
        except Exception as error:
            _log.info(
                "%s: the token counter of %.80r failed: %r",
                self._run.log_name,
                self._model.name,
                error,
            )
            return None
        if counted is None:
            return None
        if type(counted) is not int or counted < 1:
            _log.warning(
                "%s: the token counter of %.80r must return an integer from 1, got %.80r; "
                "its count is not used",
                self._run.log_name,
                self._model.name,
                counted,
            )
            return None
        return self._smaller(counted, estimated=False)

    def estimate(self) -> Spending | None:
        """Return the cost by the learned estimate; None if that is no less."""
        tokens = self._estimates.estimate(self._model.name, self._request, self._input_max)
        return self._smaller(tokens, estimated=True)

    def describe(self, *, estimates: bool) -> str:
        """Return what the smallest bound so far consists of, and what makes it fit."""
        hints = ["lower max_tokens"]
        if self._smaller_input is None and not estimates:
            hints.append("set estimate=True")
            if not isinstance(self._model, TokenCounter):
                hints.append("add a token counter")
        source = "as estimated" if self.is_estimated else "as counted"
        if self._smaller_input is None:
            source = "by bytes"
        return (
            f"{self._smaller_input or self._input_max:,} input tokens {source}, "
            f"{self._output_max:,} output tokens (max_tokens); "
            f"{', '.join(hints)} or raise the budget"
        )

    def report_usage(self, usage: Usage) -> None:
        """Learn from an answer, and log if it took more input than was reserved."""
        self._estimates.learn(self._model.name, self._request, usage.input_tokens)
        reserved = self._smaller_input
        if reserved is not None and usage.input_tokens > reserved:
            _log.warning(
                "%s: %.80r took %d input tokens, but %s; all of them count",
                self._run.log_name,
                self._model.name,
                usage.input_tokens,
                f"the estimate was {reserved}"
                if self.is_estimated
                else f"its token counter said {reserved}",
            )

    def _smaller(self, input_tokens: int, *, estimated: bool) -> Spending | None:
        if input_tokens >= self._input_max:
            return None
        self._smaller_input, self.is_estimated = input_tokens, estimated
        return model_spending(self._model, (input_tokens, self._output_max))


def model_spending(model: Model, tokens: tuple[int, int]) -> Spending:
    """Return the highest cost of a call with at most these input and output tokens."""
    nanodollars = 0 if model.price is None else model.price.max_cost_nanodollars(tokens)
    return Spending(sum(tokens), nanodollars)
