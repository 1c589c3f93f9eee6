"""Models behind any endpoint with the API of OpenAI's chat completions."""

# httpx is an extra, and is imported when the first model is made.
from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    InvalidUrl,
    ModelRefused,
    ModelUnavailable,
)
from holdfast.integrations.completions import (
    Chunk,
    Completion,
    CompletionDraft,
    ErrorBody,
    ErrorDetail,
    completions_request,
)
from holdfast.integrations.prompt_counter import PromptCounter, Tokenizer
from holdfast.integrations.responses import (
    limit_time,
    parse_retry_after,
    read_body,
    read_error_body,
    read_events,
)
from holdfast.model.durations import Duration, seconds_of
from holdfast.model.invocation import Answer, Emit, Request, Usage, tokens_max
from holdfast.model.pricing import ModelPrice, price_of
from holdfast.redaction import REDACTED, excerpt, without_credentials

if TYPE_CHECKING:
    import httpx

__all__ = ["OpenAI", "Tokenizer"]

T = TypeVar("T")

_OPENAI = "https://api.openai.com/v1"
_CONNECTIONS_MAX = 100
_CONNECT_SECONDS = 10.0
# An upper bound of the tokens of an image: the small models count up to 48,169.
_IMAGE_TOKENS = 50_000
_MESSAGE_MAX = 500
_REASON_MAX = 100
# Statuses after which a retry may succeed, besides all from 500 on.
_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = frozenset({408, 409, 425, 429})
_KEY = re.compile(r"[!-~]*")
_STATUS = re.compile(r"[0-9]{3}")


class OpenAI:
    """A model behind an endpoint with the API of OpenAI's chat completions.

    ``api_key`` defaults to ``OPENAI_API_KEY``, but only for OpenAI's own address: any other
    ``base_url`` gets only a key that is passed here. The known prices are those of OpenAI, too:
    pass a ``price`` for another ``base_url``. ``timeout`` is how long the endpoint may be
    silent. ``client`` is an ``httpx.AsyncClient``, which the caller closes. ``context_tokens`` is
    the maximum input of the model; as many are reserved for a PDF. ``tokenizer`` returns the tokens
    of a text; budgets use it to count the input of a call that does not fit by its bytes. Without
    one, models of OpenAI use tiktoken if the extra 'tokenizer' is installed.
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
        timeout: Duration = 300,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Make a model. Nothing is sent before it is asked."""
        if find_spec("httpx") is None:
            raise ModelRefused(
                "OpenAI needs httpx: install the extra 'openai', or httpx itself", reason="httpx"
            )
        self.name: Final = model
        self._url = f"{_validate_base_url(base_url)}/chat/completions"
        self._is_openai = base_url.rstrip("/") == _OPENAI
        if api_key is None:
            api_key = os.environ.get("OPENAI_API_KEY", "") if self._is_openai else ""
        self._api_key = _validate_api_key(api_key)
        self.price: Final = price or (price_of(model) if self._is_openai else None)
        self.max_tokens: Final = max_tokens
        self._context_tokens = context_tokens
        self._timeout_seconds = seconds_of(timeout, "timeout")
        self._given_client = client
        self._created_client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        self._counter = PromptCounter(model if self._is_openai else None, tokenizer)

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return tokens_max(
            request,
            image_tokens=_IMAGE_TOKENS,
            context_tokens=self._context_tokens,
            max_tokens=self.max_tokens,
        )

    async def count_tokens(self, request: Request) -> int | None:
        """Return the input tokens of a request by the tokenizer, with a margin for its framing.

        None without a tokenizer, and for images and binary documents.
        """
        return await self._counter.count(request)

    async def close(self) -> None:
        """Close the connections, unless the client belongs to the caller."""
        self._counter.close()
        if self._created_client is not None:
            _, client = self._created_client
            self._created_client = None
            await client.aclose()

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        body = completions_request(
            request,
            self.name,
            self.max_tokens,
            # OpenAI's newer models accept only the first; many other endpoints only the second.
            max_tokens_field="max_completion_tokens" if self._is_openai else "max_tokens",
        )
        if emit is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        draft = CompletionDraft()
        content, headers = msgspec.json.encode(body), self._headers(request)
        with self._translate_errors():
            async with (
                limit_time(),
                self._get_client().stream(
                    "POST", self._url, content=content, headers=headers
                ) as response,
            ):
                if response.status_code != 200:
                    raise self._status_error(response, await read_error_body(response))
                # An endpoint that cannot stream sends the answer as one body.
                if emit is None or "json" in response.headers.get("content-type", ""):
                    said = self._decode(await read_body(response), Completion)
                    if said.error is not None:
                        raise self._body_error(said.error)
                    draft.add_completion(said)
                    if emit is not None and draft.text:
                        emit(draft.text)
                else:
                    await self._read_stream(response, draft, emit)
        return draft.to_answer(request, self._usage(request, draft))

    async def _read_stream(
        self, response: httpx.Response, draft: CompletionDraft, emit: Emit
    ) -> None:
        async for data in read_events(response):
            if data == b"[DONE]":
                return
            chunk = self._decode(data, Chunk)
            if chunk.error is not None:
                raise self._body_error(chunk.error)
            if text := draft.add_chunk(chunk):
                emit(text)
        if draft.finish_reason is None:
            raise ModelUnavailable(f"{self.name} ended its answer too early", reason="cut")

    def _usage(self, request: Request, draft: CompletionDraft) -> Usage:
        if draft.usage is not None:
            return draft.usage
        # If the endpoint reports no usage, assume the maximum.
        input_max, output_max = self.tokens_max(request)
        return Usage(input_max, min(draft.size, output_max))

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        if request.idempotency_key:
            headers["Idempotency-Key"] = request.idempotency_key
        return headers

    def _get_client(self) -> httpx.AsyncClient:
        if self._given_client is not None:
            return self._given_client
        loop = asyncio.get_running_loop()
        # Connections belong to the loop that made them.
        if self._created_client is None or self._created_client[0] is not loop:
            import httpx

            timeout = httpx.Timeout(self._timeout_seconds, connect=_CONNECT_SECONDS, pool=None)
            limits = httpx.Limits(max_connections=_CONNECTIONS_MAX)
            self._created_client = (loop, httpx.AsyncClient(timeout=timeout, limits=limits))
        return self._created_client[1]

    def _decode(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            # Not quoted: it may contain the model's answer.
            raise ModelUnavailable(
                f"the endpoint sent {len(data)} bytes that cannot be read ({error})",
                reason="malformed",
            ) from error

    def _status_error(self, response: httpx.Response, body: bytes) -> HoldfastError:
        status = response.status_code
        try:
            error = msgspec.json.decode(body, type=ErrorBody).error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            error = None
        code = self._reason(error) if error is not None else ""
        said = error.message if error is not None else body.decode(errors="replace")
        message = self._redacted(f"{status} {code or response.reason_phrase}: {said}")
        # An exhausted quota of the account does not recover by itself.
        if code == "insufficient_quota" or (status not in _UNAVAILABLE and status < 500):
            return ModelRefused(message, reason=code or str(status))
        return ModelUnavailable(
            message,
            reason=code or str(status),
            retry_after_seconds=_retry_after(response),
            unpaid=status == _TOO_MANY_REQUESTS,
        )

    def _body_error(self, error: ErrorDetail) -> HoldfastError:
        """Return the error for one that the endpoint sent in a successful response."""
        code = self._reason(error) or "error"
        message = self._redacted(f"{code}: {error.message}")
        refused = _STATUS.fullmatch(code) and int(code) < 500 and int(code) not in _UNAVAILABLE
        if refused or code in ("invalid_request_error", "insufficient_quota"):
            return ModelRefused(message, reason=code)
        return ModelUnavailable(message, reason=code)

    def _reason(self, error: ErrorDetail) -> str:
        return self._redacted(error.reason)[:_REASON_MAX]

    def _redacted(self, text: str) -> str:
        """Return an endpoint's text without the key, which it may repeat, shortened for errors."""
        if self._api_key:
            text = text.replace(self._api_key, REDACTED)
        return excerpt(text, _MESSAGE_MAX)

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        import httpx

        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL) as error:
            told = self._redacted(f"{self.name}: {error}")
            raise ModelRefused(told, reason=type(error).__name__) from None
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise ModelUnavailable(
                self._redacted(f"{self.name}: {str(error) or kind}"),
                reason=kind,
                unpaid=isinstance(error, httpx.ConnectError | httpx.ConnectTimeout),
            ) from None


def _retry_after(response: httpx.Response) -> float | None:
    milliseconds = parse_retry_after(response.headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    return parse_retry_after(response.headers.get("retry-after", ""))


def _validate_api_key(api_key: object) -> str:
    # The value is not shown: even a malformed key is a secret.
    if not isinstance(api_key, str) or not _KEY.fullmatch(api_key):
        raise InvalidRequest(
            "api_key must be printable ASCII without spaces or line ends; look at OPENAI_API_KEY "
            "if you passed none",
            field="api_key",
        )
    return api_key


def _validate_base_url(base_url: str) -> str:
    shown = without_credentials(repr(base_url))
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable:
        raise InvalidUrl(
            f"base_url must be http(s)://host[:port]/path, got {shown:.80}", field="base_url"
        )
    if "@" in parts.netloc:
        raise InvalidUrl(
            f"base_url must not contain credentials, got {shown:.80}; pass api_key=…, or "
            "client=httpx.AsyncClient(auth=…)",
            field="base_url",
        )
    return base_url.rstrip("/")
