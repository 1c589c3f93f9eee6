"""The hash that identifies a request to a model."""

from __future__ import annotations

from holdfast.model.invocation import Request
from holdfast.records.codec import canonical_hash

__all__ = ["prompt_hash"]

# Increased when the form of a request changes, so that old answers are not used for new requests.
_FORM = 1


def prompt_hash(request: Request) -> bytes:
    """Return a hash of a request without its idempotency key."""
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
