"""Models behind any endpoint that speaks OpenAI's chat completions."""

# httpx is an extra, and loaded when the first model is made.
from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import HoldfastError, InvalidUrl, ModelRefused, ModelUnavailable
from holdfast.integrations.completions import (
    Chunk,
    Completion,
    Draft,
    ErrorBody,
    ErrorSaid,
    completions_request,
)
from holdfast.model.invocation import Answer, Emit, Request, Usage, tokens_at_most
from holdfast.model.pricing import ModelPrice, price_of

if TYPE_CHECKING:
    import httpx

__all__ = ["OpenAI"]

T = TypeVar("T")

_OPENAI = "https://api.openai.com/v1"
_AT_ONCE = 100
_CONNECT_SECONDS = 10.0
# More than any model asks for a picture: the small ones count one as 48,169.
_IMAGE_TOKENS = 50_000
_LINE_BYTES_MAX = 16 * 1024 * 1024
_MESSAGE_MAX = 500
# What a later call may not meet again, besides everything from 500 on.
_TOO_MANY = 429
_UNAVAILABLE = frozenset({408, 409, 425, 429})


class OpenAI:
    """A model behind an endpoint that speaks OpenAI's chat completions.

    ``api_key`` is that in ``OPENAI_API_KEY`` where none is given; where there is none, none is
    sent. The list of prices is OpenAI's: under another ``base_url`` a price has to be given.
    ``timeout_seconds`` is how long the endpoint may be silent. ``client`` is an
    ``httpx.AsyncClient``, which is its owner's to close. ``context_tokens`` is what the model can
    read at most, and what is reserved for a PDF.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = _OPENAI,
        api_key: str | None = None,
        client: httpx.AsyncClient | None = None,
        price: ModelPrice | None = None,
        max_tokens: int = 4096,
        context_tokens: int = 1_000_000,
        timeout_seconds: float = 300.0,
    ) -> None:
        if find_spec("httpx") is None:
            raise ModelRefused("OpenAI needs httpx: pip install 'holdfast[openai]'", reason="httpx")
        self.name: Final = model
        self._url = f"{_admitted(base_url)}/chat/completions"
        self._theirs = base_url.rstrip("/") == _OPENAI
        self._api_key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        self.price: Final = price or (price_of(model) if self._theirs else None)
        self.max_tokens: Final = max_tokens
        self._context_tokens = context_tokens
        self._timeout_seconds = timeout_seconds
        self._given = client
        self._made: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    def tokens_at_most(self, request: Request) -> tuple[int, int]:
        return tokens_at_most(
            request,
            image_tokens=_IMAGE_TOKENS,
            context_tokens=self._context_tokens,
            max_tokens=self.max_tokens,
        )

    async def close(self) -> None:
        """Close the connections, if they are its own."""
        if self._made is not None:
            _, client = self._made
            self._made = None
            await client.aclose()

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        body = completions_request(
            request,
            self.name,
            self.max_tokens,
            # OpenAI's newer models know no other; many an endpoint knows only the old one.
            max_tokens_field="max_completion_tokens" if self._theirs else "max_tokens",
        )
        if emit is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        draft = Draft()
        with self._errors():
            async with self._client().stream(
                "POST", self._url, content=msgspec.json.encode(body), headers=self._headers(request)
            ) as response:
                if response.status_code != 200:
                    raise _status_error(response, await response.aread())
                # An endpoint that cannot stream answers as a whole.
                if emit is None or "json" in response.headers.get("content-type", ""):
                    said = _read(await response.aread(), Completion)
                    if said.error is not None:
                        raise _said_error(said.error)
                    draft.take_whole(said)
                    if emit is not None and draft.text:
                        emit(draft.text)
                else:
                    await self._stream(response, draft, emit)
        return draft.finished(request, self._usage(request, draft))

    async def _stream(self, response: httpx.Response, draft: Draft, emit: Emit) -> None:
        async for data in _events(response):
            if data == b"[DONE]":
                return
            chunk = _read(data, Chunk)
            if chunk.error is not None:
                raise _said_error(chunk.error)
            if text := draft.take(chunk):
                emit(text)
        if draft.finish_reason is None:
            raise ModelUnavailable(
                f"{self.name} broke off in the middle of its answer", reason="cut"
            )

    def _usage(self, request: Request, draft: Draft) -> Usage:
        if draft.usage is not None:
            return draft.usage
        # An endpoint that does not count is counted for: rather too much than too little.
        bound, most = self.tokens_at_most(request)
        made = len(draft.text.encode()) + sum(len(call.arguments) for call in draft.calls)
        return Usage(bound, min(made, most))

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        if request.idempotency_key:
            headers["Idempotency-Key"] = request.idempotency_key
        return headers

    def _client(self) -> httpx.AsyncClient:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        # Connections belong to the loop that made them.
        if self._made is None or self._made[0] is not loop:
            import httpx

            timeout = httpx.Timeout(self._timeout_seconds, connect=_CONNECT_SECONDS, pool=None)
            limits = httpx.Limits(max_connections=_AT_ONCE)
            self._made = (loop, httpx.AsyncClient(timeout=timeout, limits=limits))
        return self._made[1]

    @contextmanager
    def _errors(self) -> Generator[None]:
        import httpx

        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL) as error:
            raise ModelRefused(f"{self.name}: {error}", reason=type(error).__name__) from error
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise ModelUnavailable(
                f"{self.name}: {str(error) or kind}",
                reason=kind,
                unpaid=isinstance(error, httpx.ConnectError | httpx.ConnectTimeout),
            ) from error


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event; lines end with a line feed only, unlike httpx has it."""
    left = b""
    async for piece in response.aiter_bytes():
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()):
                yield data
        if len(left) > _LINE_BYTES_MAX:
            raise ModelUnavailable(
                f"a line of the answer is longer than {_LINE_BYTES_MAX} bytes", reason="malformed"
            )
    if left.startswith(b"data:"):
        yield left[5:].strip()


def _read(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        shown = data[:200].decode(errors="replace")
        raise ModelUnavailable(
            f"the endpoint answered what cannot be understood ({error}): {shown!r}",
            reason="malformed",
        ) from error


def _status_error(response: httpx.Response, body: bytes) -> HoldfastError:
    status = response.status_code
    try:
        error = msgspec.json.decode(body, type=ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        error = None
    code = str(error.code or error.type or "") if error is not None else ""
    said = error.message if error is not None else body[:_MESSAGE_MAX].decode(errors="replace")
    message = f"{status} {code or response.reason_phrase}: {said[:_MESSAGE_MAX]}"
    # Nothing is left to be spent: that does not pass by waiting.
    if code == "insufficient_quota" or (status not in _UNAVAILABLE and status < 500):
        return ModelRefused(message, reason=code or str(status))
    return ModelUnavailable(
        message,
        reason=code or str(status),
        retry_after_seconds=_retry_after(response),
        unpaid=status == _TOO_MANY,
    )


def _said_error(error: ErrorSaid) -> HoldfastError:
    """Return what an error comes down to that came after the endpoint had said yes."""
    code = str(error.code or error.type or "error")
    message = f"{code}: {error.message[:_MESSAGE_MAX]}"
    refused = code.isdigit() and int(code) < 500 and int(code) not in _UNAVAILABLE
    if refused or code in ("invalid_request_error", "insufficient_quota"):
        return ModelRefused(message, reason=code)
    return ModelUnavailable(message, reason=code)


def _retry_after(response: httpx.Response) -> float | None:
    """Return how long to wait, where it is said in seconds; a date would need a clock."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        said = response.headers.get(name, "")
        if said.replace(".", "", 1).isdecimal():
            return float(said) / divisor
    return None


def _admitted(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidUrl(f"{base_url!r:.80} is not http(s)://host[:port]/path", field="base_url")
    return base_url.rstrip("/")
