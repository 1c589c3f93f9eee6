"""Headers of posts that are signed as Standard Webhooks describes."""

from __future__ import annotations

from datetime import UTC, datetime

from standardwebhooks import Webhook as Signer

__all__ = ["signed_headers"]


def signed_headers(secret: str, *, id: str, body: bytes, now_ms: int, agent: str) -> dict[str, str]:
    """Return the headers with which a receiver verifies who sent a body, and when."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return {
        "content-type": "application/json",
        "user-agent": agent,
        "webhook-id": id,
        "webhook-timestamp": str(now_ms // 1000),
        "webhook-signature": Signer(secret).sign(id, moment, body.decode()),
    }
