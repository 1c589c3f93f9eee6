"""What tells one question to a model from another."""

from __future__ import annotations

from holdfast.model.invocation import Request
from holdfast.records.codec import canonical_hash

__all__ = ["prompt_hash"]

# Goes up when the form of a request changes, so that no answer is taken for that to another one.
_FORM = 1


def prompt_hash(request: Request) -> bytes:
    """Return a hash of what is asked, of which model and how; not of the idempotency key."""
    return canonical_hash(
        [
            _FORM,
            request.model,
            request.messages,
            [[tool.name, tool.description, tool.parameters] for tool in request.tools],
            request.tool_choice,
            request.output,
            request.params,
        ]
    )
