"""Posts messages to the receivers of webhooks, signed as Standard Webhooks describes."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple, Protocol

import httpx

from holdfast.errors import TargetRefused
from holdfast.network.addresses import AllowList
from holdfast.network.guarded_http import Resolve, guarded_client, resolve_host
from holdfast.network.signed_posts import signed_headers
from holdfast.webhooks.messages import WebhookMessage

__all__ = ["HttpSender", "SendOutcome", "Sender"]

_TIMEOUT_SECONDS = 10.0
# The answer says nothing that matters, but reading a little lets a connection be used again.
_ANSWER_BYTES_MAX = 4_096
_GONE = 410


class SendOutcome(NamedTuple):
    """What became of one attempt."""

    error: str
    """Why it failed; empty if the receiver accepted the message."""
    gone: bool = False
    """Whether the receiver wants no more messages."""


class Sender(Protocol):
    """Sends messages."""

    async def send(
        self, url: str, secret: str, message: WebhookMessage, *, now_ms: int
    ) -> SendOutcome:
        """Make one attempt. It raises nothing: a failure is an outcome."""
        ...


class HttpSender:
    """Sends messages over HTTP to addresses that the guard permits."""

    def __init__(self, allow: AllowList, *, resolve: Resolve = resolve_host) -> None:
        self._client = guarded_client(allow, timeout_seconds=_TIMEOUT_SECONDS, resolve=resolve)

    async def send(
        self, url: str, secret: str, message: WebhookMessage, *, now_ms: int
    ) -> SendOutcome:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await self._post(url, _headers(secret, message, now_ms), message.body)
        except TimeoutError:
            return SendOutcome(f"no answer within {_TIMEOUT_SECONDS:g} s")
        except TargetRefused as error:
            return SendOutcome(str(error))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return SendOutcome(f"{type(error).__name__}: {error}"[:300])
        except Exception as error:  # without its text, which may have the secret
            return SendOutcome(type(error).__name__)

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> SendOutcome:
        async with self._client.stream("POST", url, headers=headers, content=body) as response:
            size = 0
            # Raw: a small compressed answer may be a large one.
            async for piece in response.aiter_raw():
                size += len(piece)
                if size >= _ANSWER_BYTES_MAX:
                    break
        if response.is_success:
            return SendOutcome("")
        return SendOutcome(f"status {response.status_code}", response.status_code == _GONE)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> HttpSender:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _headers(secret: str, message: WebhookMessage, now_ms: int) -> dict[str, str]:
    return signed_headers(
        secret, id=message.id, body=message.body, now_ms=now_ms, agent="holdfast-webhooks/1"
    )
