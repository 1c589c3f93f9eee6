"""Counts the tokens of prompts for OpenAI-compatible endpoints, with a local tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.errors import InvalidRequest
from holdfast.model.invocation import Request, input_bytes

__all__ = ["PromptCounter", "Tokenizer"]

Tokenizer: TypeAlias = Callable[[str], Sequence[Any]]
"""Returns the tokens of a text."""

# Endpoints frame messages and write tools in their own way. Each margin is more than is known.
_PROMPT_TOKENS = 16
_MESSAGE_TOKENS = 8
_TOOLS_TOKENS = 64
_TOOL_TOKENS = 16
_MARGIN_PERCENT = 5


class PromptCounter:
    """The tokenizer of one model, which is loaded when it is first used.

    It runs in a thread: tiktoken downloads its tables, and a long prompt takes a while.
    """

    def __init__(self, tiktoken_model: str | None, tokenizer: Tokenizer | None) -> None:
        """Use a tokenizer, or else tiktoken's for a model of OpenAI, if it is installed.

        Raises:
            InvalidRequest: the tokenizer is not a function.
        """
        if tokenizer is not None and not callable(tokenizer):
            raise InvalidRequest(
                f"tokenizer must be a function from a text to its tokens, got {tokenizer!r:.80}",
                field="tokenizer",
            )
        self._tiktoken_model = tiktoken_model
        self._tokenizer = tokenizer
        self._threads = NodeThreads(1, name="tokenizer")

    async def count(self, request: Request) -> int | None:
        """Return an upper count of a request's input tokens; None if it cannot be counted.

        Raises:
            KeyError: tiktoken does not know the model.
            Exception: the tokenizer cannot be loaded, or it failed.
        """
        if input_bytes(request) is None:
            return None
        if self._tokenizer is None and (
            self._tiktoken_model is None or find_spec("tiktoken") is None
        ):
            return None
        return await asyncio.wrap_future(self._threads.submit(self._count_in_thread, request))

    def close(self) -> None:
        """Let the idle thread end."""
        self._threads.shutdown()

    def _count_in_thread(self, request: Request) -> int:
        if self._tokenizer is None:
            import tiktoken  # pyright: ignore[reportMissingImports]

            tokenizers: Any = tiktoken
            # Texts such as <|endoftext|> are plain text in a prompt.
            self._tokenizer = tokenizers.encoding_for_model(self._tiktoken_model).encode_ordinary
        tokens = sum(len(self._tokenizer(text)) for text in _texts(request))
        framing = _PROMPT_TOKENS + _MESSAGE_TOKENS * len(request.messages)
        if request.tools or request.output:
            framing += _TOOLS_TOKENS + _TOOL_TOKENS * len(request.tools)
        return tokens + tokens * _MARGIN_PERCENT // 100 + framing


def _texts(request: Request) -> list[str]:
    texts: list[str] = []
    for message in request.messages:
        content: Any = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in cast(list[dict[str, Any]], parts):
            if part["type"] == "text":
                texts.append(part["text"])
            else:  # a text document
                texts += [part["name"], part["data"].decode(errors="replace")]
        if calls := message.get("tool_calls"):
            texts.append(msgspec.json.encode(calls).decode())
    if request.tools or request.output:
        texts.append(msgspec.json.encode([request.tools, request.output]).decode())
    return texts
