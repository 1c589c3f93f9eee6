"""Models on Amazon Bedrock, by its Converse API.

boto3 blocks: a call takes a thread for as long as the model speaks. What is cancelled emits nothing
more, and its thread ends with the next piece that arrives, or with the answer.
"""

# boto3 carries no types. What it answers is Any here, and leaves as values of ours.
from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import StringIO
from typing import Any, Final, TypeVar

import msgspec

from holdfast.addresses import excerpt
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.errors import HoldfastError, ModelRefused, ModelUnavailable
from holdfast.integrations.converse import ANSWER_TOOL, converse_request
from holdfast.integrations.reading import Size, bounded_time, retry_after_seconds, too_large
from holdfast.model.bounds import STREAM_EVENTS_MAX
from holdfast.model.invocation import (
    Answer,
    Emit,
    Request,
    StopReason,
    ToolCall,
    Usage,
    tokens_at_most,
)
from holdfast.model.pricing import ModelPrice, price_of

__all__ = ["Bedrock"]

T = TypeVar("T")

_AT_ONCE = 64
# Blocks of text in an answer, which has one or two: each takes memory, also if it is empty.
_BLOCKS_MAX = 10_000
_CONNECT_SECONDS = 10
# More than any model asks for a picture.
_IMAGE_TOKENS = 5_000
_MESSAGE_MAX = 500
_REASON_MAX = 100
_THROTTLED = "ThrottlingException"
_UNAVAILABLE = frozenset(
    {
        "InternalFailure",
        "InternalServerException",
        "ModelErrorException",
        "ModelNotReadyException",
        "ModelStreamErrorException",
        "ModelTimeoutException",
        "RequestTimeout",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_STOP_REASONS: dict[str, StopReason] = {
    "content_filtered": "filtered",
    "guardrail_intervened": "filtered",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class Bedrock:
    """A model on Amazon Bedrock, or a profile that leads to one.

    ``client`` is boto3's for ``bedrock-runtime``; without one it is made from the region and the
    credentials that the AWS command line would find, and does not try again by itself.
    ``context_tokens`` is what the model can read at most, and what is reserved for a PDF.
    """

    def __init__(
        self,
        model_id: str,
        *,
        client: Any = None,
        region: str | None = None,
        price: ModelPrice | None = None,
        max_tokens: int = 4096,
        context_tokens: int = 1_000_000,
        timeout_seconds: float = 300.0,
    ) -> None:
        _check_installed()
        self.name: Final = model_id
        self._client = client
        self._region = region
        self.price: Final = price or price_of(model_id)
        self.max_tokens: Final = max_tokens
        self._context_tokens = context_tokens
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._threads = NodeThreads(_AT_ONCE, name="bedrock")

    def tokens_at_most(self, request: Request) -> tuple[int, int]:
        return tokens_at_most(
            request,
            image_tokens=_IMAGE_TOKENS,
            context_tokens=self._context_tokens,
            max_tokens=self.max_tokens,
        )

    async def close(self) -> None:
        """Let the threads end once they have nothing to do; the client stays its owner's."""
        self._threads.shutdown()

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        asked = converse_request(request, self.name, self.max_tokens)
        async with bounded_time():
            if emit is None:
                return await self._in_thread(lambda: self._whole(request, asked))
            listener = _Listener(asyncio.get_running_loop(), emit)
            try:
                return await self._in_thread(lambda: self._streamed(request, asked, listener))
            finally:
                listener.leave()

    def _whole(self, request: Request, asked: dict[str, Any]) -> Answer:
        draft = _Draft(structured=request.output is not None)
        with _understood():
            self._read_whole(_called(lambda: self._ready().converse(**asked)), draft)
            return draft.finished(request, self.name)

    def _read_whole(self, said: Any, draft: _Draft) -> None:
        message = said["output"].get("message", {"content": []})
        for index, block in enumerate(message["content"]):
            if "text" in block:
                draft.text(index, block["text"])
            elif "toolUse" in block:
                use = block["toolUse"]
                draft.begin(index, use["toolUseId"], use["name"])
                draft.input(index, msgspec.json.encode(use["input"]).decode())
        draft.stop_reason, draft.usage = said["stopReason"], said["usage"]

    def _streamed(self, request: Request, asked: dict[str, Any], listener: _Listener) -> Answer:
        said = _called(lambda: self._ready().converse_stream(**asked))
        draft = _Draft(structured=request.output is not None)
        stream = said["stream"]
        try:
            with _understood():
                _called(lambda: self._read(stream, draft, listener))
        finally:
            with suppress(Exception):  # it is over, however it ended
                stream.close()
        if draft.stop_reason is None or draft.usage is None:
            raise ModelUnavailable(
                f"{self.name} broke off in the middle of its answer", reason="cut"
            )
        with _understood():
            answer = draft.finished(request, self.name)
        # What was not told while it came: prose where an object was asked for.
        listener.tell(answer.text[draft.told :])
        return answer

    def _read(self, stream: Iterable[Any], draft: _Draft, listener: _Listener) -> None:
        for number, event in enumerate(stream):
            if listener.left:
                return
            if number >= STREAM_EVENTS_MAX:
                too_large("events in its stream", STREAM_EVENTS_MAX)
            if start := event.get("contentBlockStart"):
                if use := start["start"].get("toolUse"):
                    draft.begin(start["contentBlockIndex"], use["toolUseId"], use["name"])
            elif delta := event.get("contentBlockDelta"):
                index, piece = delta["contentBlockIndex"], delta["delta"]
                if "text" in piece:
                    listener.tell(draft.text(index, piece["text"]))
                elif "toolUse" in piece:
                    listener.tell(draft.input(index, piece["toolUse"]["input"]))
            elif stop := event.get("messageStop"):
                draft.stop_reason = stop["stopReason"]
            elif metadata := event.get("metadata"):
                draft.usage = metadata["usage"]

    async def _in_thread(self, call: Callable[[], T]) -> T:
        try:
            future = self._threads.submit(call)
        except RuntimeError as error:  # the machine has no threads left
            raise ModelUnavailable(f"no thread for {self.name}: {error}") from error
        return await asyncio.wrap_future(future)

    def _ready(self) -> Any:
        with self._lock:
            if self._client is None:
                import boto3
                from botocore.config import Config

                from holdfast.storage.aws import admitted_region

                session: Any = boto3
                self._client = session.client(
                    "bedrock-runtime",
                    region_name=admitted_region(self._region),
                    config=Config(
                        connect_timeout=_CONNECT_SECONDS,
                        read_timeout=self._timeout_seconds,
                        # Whoever asks tries again, and has to know what was tried.
                        retries={"total_max_attempts": 1, "mode": "standard"},
                        max_pool_connections=_AT_ONCE,
                    ),
                )
            return self._client


class _Listener:
    """Carries text from a thread to the event loop, until nobody listens any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Emit) -> None:
        self._loop = loop
        self._emit = emit
        self.left = False

    def tell(self, text: str) -> None:
        # In front of what the thread returns, since a loop keeps the order of what it is told.
        if text:
            with suppress(RuntimeError):  # the loop is closed, and nobody is left
                self._loop.call_soon_threadsafe(self._hear, text)

    def leave(self) -> None:
        self.left = True

    def _hear(self, text: str) -> None:
        if not self.left:
            self._emit(text)


class _Draft:
    """An answer that is being put together, block by block."""

    def __init__(self, *, structured: bool) -> None:
        self._structured = structured
        self._size = Size()
        # Not `str`, to which to add takes time in proportion to all that it has.
        self._texts: defaultdict[int, StringIO] = defaultdict(StringIO)
        self._uses: dict[int, tuple[str, str]] = {}
        self._inputs: dict[int, StringIO] = {}
        self.told = 0
        """How much of the answer's text was given out as it came."""
        self.stop_reason: str | None = None
        self.usage: Any = None

    def text(self, index: int, piece: str) -> str:
        """Take a piece of prose, and return what of it is the answer's text for sure."""
        self._texts[index].write(self._size.add(piece))
        if len(self._texts) > _BLOCKS_MAX:
            too_large("blocks of text", _BLOCKS_MAX)
        return "" if self._structured else self._told(piece)

    def begin(self, index: int, use_id: str, name: str) -> None:
        self._size.add_call()
        self._uses[index] = (self._size.add(use_id), self._size.add(name))
        self._inputs[index] = StringIO()

    def input(self, index: int, piece: str) -> str:
        """Take a piece of a tool's arguments, and return what of it is the answer's text."""
        self._inputs[index].write(self._size.add(piece))
        return self._told(piece) if index == self._answered() else ""

    def finished(self, request: Request, model: str) -> Answer:
        """Return the answer, all of which has come."""
        answered = self._answered()
        calls = [
            ToolCall.read(use_id, name, self._inputs[index].getvalue())
            for index, (use_id, name) in self._uses.items()
            if not self._structured or name != ANSWER_TOOL
        ]
        prose = "".join(self._texts[index].getvalue() for index in sorted(self._texts))
        stop_reason = _STOP_REASONS.get(self.stop_reason or "", "end")
        return Answer.to(
            request,
            text=prose if answered is None else self._inputs[answered].getvalue(),
            tool_calls=calls,
            usage=_usage(self.usage),
            stop_reason="tool_calls" if calls and stop_reason == "end" else stop_reason,
            model=model,
        )

    def _answered(self) -> int | None:
        """Return the block that is the object which was asked for."""
        if self._structured:
            for index, (_, name) in self._uses.items():
                if name == ANSWER_TOOL:
                    return index
        return None

    def _told(self, piece: str) -> str:
        self.told += len(piece)
        return piece


def _usage(said: Any) -> Usage:
    cached = said.get("cacheReadInputTokens") or 0
    written = said.get("cacheWriteInputTokens") or 0
    # Bedrock does not count as input what came out of its cache, or went into it.
    return Usage(said["inputTokens"] + cached + written, said["outputTokens"], cached)


@contextmanager
def _understood() -> Generator[None]:
    """Raise the error for an answer that is not what Converse answers."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,  # a number with more digits than Python reads, a lone surrogate
    ) as error:
        # Its text is not quoted: it may hold what the model said.
        raise ModelUnavailable(
            f"Bedrock answered what cannot be understood: {type(error).__name__}",
            reason="malformed",
        ) from error


def _called(call: Callable[[], T]) -> T:
    """Make a call of boto3, and raise what its errors come down to."""
    from botocore import exceptions as kinds
    from botocore.eventstream import ParserError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    try:
        return call()
    except kinds.ClientError as error:
        raise _service_error(error) from error
    except (
        kinds.ConnectionError,
        kinds.HTTPClientError,
        ParserError,
        HTTPError,  # once a stream has begun, nobody wraps them
        OSError,
    ) as error:
        raise ModelUnavailable(
            f"Bedrock: {_told(error)}",
            reason=type(error).__name__,
            unpaid=isinstance(error, kinds.EndpointConnectionError | kinds.ConnectTimeoutError),
        ) from error
    except kinds.BotoCoreError as error:  # no credentials, no region, parameters that make no sense
        raise ModelRefused(f"Bedrock: {_told(error)}", reason=type(error).__name__) from error
    except ResponseParserError as error:
        raise ModelUnavailable(f"Bedrock: {_told(error)}", reason="malformed") from error


def _told(said: object) -> str:
    return excerpt(str(said), _MESSAGE_MAX)


def _service_error(error: Any) -> HoldfastError:
    said = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    code = str(said.get("Code", ""))
    # In a stream they begin with a small letter.
    reason = code[:1].upper() + code[1:_REASON_MAX]
    message = f"Bedrock: {reason}: {_told(said.get('Message', ''))}"
    if reason not in _UNAVAILABLE and metadata.get("HTTPStatusCode", 400) < 500:
        return ModelRefused(message, reason=reason)
    return ModelUnavailable(
        message,
        reason=reason,
        retry_after_seconds=retry_after_seconds(
            metadata.get("HTTPHeaders", {}).get("retry-after", "")
        ),
        unpaid=reason == _THROTTLED,
    )


def _check_installed() -> None:
    if find_spec("boto3") is None:
        raise ModelRefused("Bedrock needs boto3: pip install 'holdfast[aws]'", reason="boto3")
