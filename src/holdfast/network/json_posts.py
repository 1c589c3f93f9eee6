"""Posts a body to an address that a user configured, through the guarded HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from holdfast.network.addresses import AllowList
from holdfast.network.guarded_http import guarded_client

__all__ = ["PostFailed", "post_body"]

_TIMEOUT_SECONDS = 10.0
_ANSWER_BYTES_MAX = 4_096


class PostFailed(OSError):
    """A receiver did not accept a post. The text never has its address, which may be a secret."""


async def post_body(allow: AllowList, url: str, *, headers: Mapping[str, str], body: bytes) -> None:
    """Post a body, and read a little of the answer.

    Raises:
        PostFailed: there was no answer in time, or it was not a success.
        TargetRefused: the address is not public, and not on the allow-list.
    """
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            guarded_client(allow, timeout_seconds=_TIMEOUT_SECONDS) as client,
            client.stream("POST", url, headers=dict(headers), content=body) as response,
        ):
            size = 0
            # Raw: a small compressed answer may be a large one.
            async for piece in response.aiter_raw():
                size += len(piece)
                if size >= _ANSWER_BYTES_MAX:
                    break
            if not response.is_success:
                raise PostFailed(f"the receiver answered with status {response.status_code}")
    except TimeoutError:
        raise PostFailed(f"the receiver gave no answer within {_TIMEOUT_SECONDS:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PostFailed(f"the receiver cannot be reached: {type(error).__name__}") from None
