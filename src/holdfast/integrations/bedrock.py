"""Models on Amazon Bedrock, through its Converse API.

boto3 blocks, so each call occupies a thread until the answer is complete. A cancelled call emits no
more text. Its thread ends when the next piece or the answer arrives.
"""

# boto3 has no types: its answers are Any here, and are converted to types of Holdfast.
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

from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.errors import HoldfastError, ModelRefused, ModelUnavailable
from holdfast.integrations.converse import ANSWER_TOOL, converse_request
from holdfast.integrations.guardrails import guardrail_config, guardrail_flags
from holdfast.integrations.responses import (
    AnswerSize,
    limit_time,
    parse_retry_after,
    raise_too_large,
)
from holdfast.model.answer_limits import STREAM_EVENTS_MAX
from holdfast.model.durations import Duration, seconds_of
from holdfast.model.invocation import (
    Answer,
    Emit,
    Request,
    StopReason,
    ToolCall,
    Usage,
    tokens_max,
)
from holdfast.model.pricing import ModelPrice, foundation_model, price_of
from holdfast.redaction import excerpt

__all__ = ["Bedrock"]

T = TypeVar("T")

_CALLS_IN_FLIGHT_MAX = 64
# Most answers have one or two blocks of text. Empty ones take memory, too.
_BLOCKS_MAX = 10_000
_CONNECT_SECONDS = 10
# What CountTokens accepts of a Converse request.
_COUNTED_FIELDS = ("messages", "system", "toolConfig", "additionalModelRequestFields")
# An upper bound of the tokens that any model counts for an image.
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
    """A model on Amazon Bedrock, or an inference profile.

    ``client`` is a boto3 client for ``bedrock-runtime``. Without one the model makes a client that
    does not retry, with the region and the credentials that the AWS command line would use.
    ``context_tokens`` is the maximum input of the model; as many are reserved for a PDF.
    ``guardrail`` is a guardrail's id or ARN and its version, as in ``a1b2c3d4e5f6:1``. It assesses
    each question and each answer; `Answer.flags` has what it flagged.
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
        timeout: Duration = 300,
        guardrail: str | None = None,
    ) -> None:
        """Make a model. Nothing is sent before it is asked."""
        _check_installed()
        self.name: Final = model_id
        self._client = client
        self._region = region
        self.price: Final = price or price_of(model_id)
        self.max_tokens: Final = max_tokens
        self._context_tokens = context_tokens
        self._timeout_seconds = seconds_of(timeout, "timeout")
        self._guardrail = None if guardrail is None else guardrail_config(guardrail)
        self._lock = threading.Lock()
        self._threads = NodeThreads(_CALLS_IN_FLIGHT_MAX, name="bedrock")

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return tokens_max(
            request,
            image_tokens=_IMAGE_TOKENS,
            context_tokens=self._context_tokens,
            max_tokens=self.max_tokens,
        )

    async def close(self) -> None:
        """Let idle threads end. The client stays open: it belongs to the caller."""
        self._threads.shutdown()

    async def count_tokens(self, request: Request) -> int:
        """Return the input tokens that Bedrock would charge, by its CountTokens API, for free.

        Only some models support it, and only under the id of the model itself.

        Raises:
            ModelRefused: the model does not support it, or the role lacks bedrock:CountTokens.
            ModelUnavailable: Bedrock did not answer.
        """
        params = converse_request(request, self.name, self.max_tokens)
        counted = {field: params[field] for field in _COUNTED_FIELDS if field in params}

        def count() -> Any:
            return self._get_client().count_tokens(
                modelId=foundation_model(self.name), input={"converse": counted}
            )

        response = await self._run_in_thread(lambda: _call_boto(count))
        with _translate_malformed():
            return response["inputTokens"]

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        params = converse_request(request, self.name, self.max_tokens)
        if self._guardrail is not None:
            params["guardrailConfig"] = self._guardrail
        async with limit_time():
            if emit is None:
                return await self._run_in_thread(lambda: self._converse(request, params))
            emitter = _Emitter(asyncio.get_running_loop(), emit)
            try:
                return await self._run_in_thread(
                    lambda: self._converse_stream(request, params, emitter)
                )
            finally:
                emitter.stop()

    def _converse(self, request: Request, params: dict[str, Any]) -> Answer:
        draft = _ConverseDraft(structured=request.output is not None)
        with _translate_malformed():
            self._read_response(_call_boto(lambda: self._get_client().converse(**params)), draft)
            return draft.to_answer(request, self.name)

    def _read_response(self, said: Any, draft: _ConverseDraft) -> None:
        message = said["output"].get("message", {"content": []})
        for index, block in enumerate(message["content"]):
            if "text" in block:
                draft.add_text(index, block["text"])
            elif "toolUse" in block:
                use = block["toolUse"]
                draft.begin_tool_use(index, use["toolUseId"], use["name"])
                draft.add_input(index, msgspec.json.encode(use["input"]).decode())
        draft.stop_reason, draft.usage = said["stopReason"], said["usage"]
        draft.flags = guardrail_flags(said.get("trace"))

    def _converse_stream(
        self, request: Request, params: dict[str, Any], emitter: _Emitter
    ) -> Answer:
        said = _call_boto(lambda: self._get_client().converse_stream(**params))
        draft = _ConverseDraft(structured=request.output is not None)
        stream = said["stream"]
        try:
            with _translate_malformed():
                _call_boto(lambda: self._read_stream(stream, draft, emitter))
        finally:
            with suppress(Exception):  # the call has ended, with or without an error
                stream.close()
        if draft.stop_reason is None or draft.usage is None:
            raise ModelUnavailable(f"{self.name} ended its answer too early", reason="cut")
        with _translate_malformed():
            answer = draft.to_answer(request, self.name)
        # Text that was not emitted as it arrived: prose instead of the requested object.
        emitter.emit(answer.text[draft.emitted_length :])
        return answer

    def _read_stream(self, stream: Iterable[Any], draft: _ConverseDraft, emitter: _Emitter) -> None:
        for number, event in enumerate(stream):
            if emitter.stopped:
                return
            if number >= STREAM_EVENTS_MAX:
                raise_too_large("events in its stream", STREAM_EVENTS_MAX)
            if start := event.get("contentBlockStart"):
                if use := start["start"].get("toolUse"):
                    draft.begin_tool_use(start["contentBlockIndex"], use["toolUseId"], use["name"])
            elif delta := event.get("contentBlockDelta"):
                index, piece = delta["contentBlockIndex"], delta["delta"]
                if "text" in piece:
                    emitter.emit(draft.add_text(index, piece["text"]))
                elif "toolUse" in piece:
                    emitter.emit(draft.add_input(index, piece["toolUse"]["input"]))
            elif stop := event.get("messageStop"):
                draft.stop_reason = stop["stopReason"]
            elif metadata := event.get("metadata"):
                draft.usage = metadata["usage"]
                draft.flags = guardrail_flags(metadata.get("trace"))

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        try:
            future = self._threads.submit(call)
        except RuntimeError as error:  # the system cannot start another thread
            raise ModelUnavailable(f"no thread for {self.name}: {error}") from error
        return await asyncio.wrap_future(future)

    def _get_client(self) -> Any:
        with self._lock:
            if self._client is None:
                import boto3
                from botocore.config import Config

                from holdfast.storage.aws import configured_region

                session: Any = boto3
                self._client = session.client(
                    "bedrock-runtime",
                    region_name=configured_region(self._region),
                    config=Config(
                        connect_timeout=_CONNECT_SECONDS,
                        read_timeout=self._timeout_seconds,
                        # The caller retries, and must know what was tried.
                        retries={"total_max_attempts": 1, "mode": "standard"},
                        max_pool_connections=_CALLS_IN_FLIGHT_MAX,
                    ),
                )
            return self._client


class _Emitter:
    """Passes text from a thread to the event loop, until the reader stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Emit) -> None:
        self._loop = loop
        self._emit = emit
        self.stopped = False

    def emit(self, text: str) -> None:
        # The loop keeps the order of callbacks: this comes before the result of the thread.
        if text:
            with suppress(RuntimeError):  # the loop is closed, so there is no reader
                self._loop.call_soon_threadsafe(self._emit_in_loop, text)

    def stop(self) -> None:
        self.stopped = True

    def _emit_in_loop(self, text: str) -> None:
        if not self.stopped:
            self._emit(text)


class _ConverseDraft:
    """Assembles an answer from its blocks."""

    def __init__(self, *, structured: bool) -> None:
        self._structured = structured
        self._size = AnswerSize()
        # Not `str`: appending to one copies all of it.
        self._texts: defaultdict[int, StringIO] = defaultdict(StringIO)
        self._tool_uses: dict[int, tuple[str, str]] = {}
        self._inputs: dict[int, StringIO] = {}
        self.emitted_length = 0
        """How many characters of the answer's text were emitted as they arrived."""
        self.stop_reason: str | None = None
        self.usage: Any = None
        self.flags: tuple[str, ...] = ()

    def add_text(self, index: int, piece: str) -> str:
        """Add a piece of prose; return the part of it that certainly is the answer's text."""
        self._texts[index].write(self._size.add(piece))
        if len(self._texts) > _BLOCKS_MAX:
            raise_too_large("blocks of text", _BLOCKS_MAX)
        return "" if self._structured else self._count_emitted(piece)

    def begin_tool_use(self, index: int, use_id: str, name: str) -> None:
        self._size.add_call()
        self._tool_uses[index] = (self._size.add(use_id), self._size.add(name))
        self._inputs[index] = StringIO()

    def add_input(self, index: int, piece: str) -> str:
        """Add a piece of a tool's arguments; return the part of it that is the answer's text."""
        self._inputs[index].write(self._size.add(piece))
        return self._count_emitted(piece) if index == self._answer_block() else ""

    def to_answer(self, request: Request, model: str) -> Answer:
        """Return the answer, after all of it has arrived."""
        answer_block = self._answer_block()
        calls = [
            ToolCall.read(use_id, name, self._inputs[index].getvalue())
            for index, (use_id, name) in self._tool_uses.items()
            if not self._structured or name != ANSWER_TOOL
        ]
        prose = "".join(self._texts[index].getvalue() for index in sorted(self._texts))
        stop_reason = _STOP_REASONS.get(self.stop_reason or "", "end")
        return Answer.to(
            request,
            text=prose if answer_block is None else self._inputs[answer_block].getvalue(),
            tool_calls=calls,
            usage=_usage(self.usage),
            stop_reason="tool_calls" if calls and stop_reason == "end" else stop_reason,
            model=model,
            flags=self.flags,
        )

    def _answer_block(self) -> int | None:
        """Return the index of the block with the requested object; None if there is none."""
        if self._structured:
            for index, (_, name) in self._tool_uses.items():
                if name == ANSWER_TOOL:
                    return index
        return None

    def _count_emitted(self, piece: str) -> str:
        self.emitted_length += len(piece)
        return piece


def _usage(said: Any) -> Usage:
    cached = said.get("cacheReadInputTokens") or 0
    written = said.get("cacheWriteInputTokens") or 0
    # Bedrock does not count tokens that it read from its cache, or wrote to it, as input.
    return Usage(said["inputTokens"] + cached + written, said["outputTokens"], cached)


@contextmanager
def _translate_malformed() -> Generator[None]:
    """Convert the errors that a malformed answer causes."""
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
        # Its text is not quoted: it may contain the model's answer.
        raise ModelUnavailable(
            f"Bedrock sent an answer that cannot be read: {type(error).__name__}",
            reason="malformed",
        ) from error


def _call_boto(call: Callable[[], T]) -> T:
    """Convert the errors of boto3 to those of Holdfast."""
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
        HTTPError,  # boto3 does not wrap them after a stream has begun
        OSError,
    ) as error:
        raise ModelUnavailable(
            f"Bedrock: {_error_excerpt(error)}",
            reason=type(error).__name__,
            unpaid=isinstance(error, kinds.EndpointConnectionError | kinds.ConnectTimeoutError),
        ) from error
    except kinds.BotoCoreError as error:  # no credentials, no region, invalid parameters
        raise ModelRefused(
            f"Bedrock: {_error_excerpt(error)}", reason=type(error).__name__
        ) from error
    except ResponseParserError as error:
        raise ModelUnavailable(f"Bedrock: {_error_excerpt(error)}", reason="malformed") from error


def _error_excerpt(said: object) -> str:
    return excerpt(str(said), _MESSAGE_MAX)


def _service_error(error: Any) -> HoldfastError:
    said = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    code = str(said.get("Code", ""))
    # In a stream their names begin with a small letter.
    reason = code[:1].upper() + code[1:_REASON_MAX]
    message = f"Bedrock: {reason}: {_error_excerpt(said.get('Message', ''))}"
    if reason not in _UNAVAILABLE and metadata.get("HTTPStatusCode", 400) < 500:
        return ModelRefused(message, reason=reason)
    return ModelUnavailable(
        message,
        reason=reason,
        retry_after_seconds=parse_retry_after(
            metadata.get("HTTPHeaders", {}).get("retry-after", "")
        ),
        unpaid=reason == _THROTTLED,
    )


def _check_installed() -> None:
    if find_spec("boto3") is None:
        raise ModelRefused(
            "Bedrock needs boto3: install the extra 'aws', or boto3 itself", reason="boto3"
        )
