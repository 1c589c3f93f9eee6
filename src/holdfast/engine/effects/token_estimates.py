"""Estimates of the input tokens of requests, learned from the calls of this process.

It is used only under `Budget.estimate`, and only for a call with an upper bound that does not fit.
"""

from __future__ import annotations

import math

from holdfast.model.invocation import Request, input_bytes

__all__ = ["TokenEstimates"]

# Until a process has seen answers: half a token for a byte. English text has a quarter, JSON and
# Chinese two fifths.
_PRIOR_TOKENS = 2_000.0
_PRIOR_BYTES = 4_000.0
_MARGIN = 1.25
_TOKENS_PER_BYTE_MIN = 0.125
# What services typically add to a prompt, to a message, and for tools.
_PROMPT_TOKENS = 16
_MESSAGE_TOKENS = 8
_TOOLS_TOKENS = 400
# From here on, older calls count half: prompts of a process may change.
_REMEMBERED_BYTES = 1_000_000.0


class TokenEstimates:
    """How many tokens a byte has, for each model that this process has asked."""

    def __init__(self) -> None:
        # By the name of the model at its service: tokens and bytes of the calls so far.
        self._learned: dict[str, tuple[float, float]] = {}

    def learn(self, model: str, request: Request, input_tokens: int) -> None:
        """Learn from the input tokens that a service reported for a request."""
        size = input_bytes(request)
        if not size:
            return
        tokens, total = self._learned.get(model, (_PRIOR_TOKENS, _PRIOR_BYTES))
        tokens, total = tokens + max(input_tokens - _framing(request), 0), total + size
        if total > _REMEMBERED_BYTES:
            tokens, total = tokens / 2, total / 2
        self._learned[model] = (tokens, total)

    def estimate(self, model: str, request: Request, input_tokens_max: int) -> int:
        """Return an estimate of a request's input tokens, at most the upper bound.

        A request with images or binary documents has the upper bound.
        """
        size = input_bytes(request)
        if size is None:
            return input_tokens_max
        tokens, total = self._learned.get(model, (_PRIOR_TOKENS, _PRIOR_BYTES))
        per_byte = max(_MARGIN * tokens / total, _TOKENS_PER_BYTE_MIN)
        return min(math.ceil(per_byte * size) + _framing(request), input_tokens_max)


def _framing(request: Request) -> int:
    """Return the tokens that a service adds to the text of a request, as estimated."""
    tools = _TOOLS_TOKENS if request.tools or request.output else 0
    return _PROMPT_TOKENS + _MESSAGE_TOKENS * len(request.messages) + tools
