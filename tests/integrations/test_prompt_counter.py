"""Token counts for OpenAI-compatible endpoints: with a given tokenizer, and with tiktoken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.integrations.offline import Offline
from holdfast.integrations.openai import OpenAI
from holdfast.model.invocation import Request, TokenCounter, ToolSpec

TEXT = "Where is the ship? " * 50
IMAGE = {"type": "image", "media_type": "image/png", "data": b"\x89PNG"}
NOTE = {"type": "document", "media_type": "text/plain", "data": b"at sea", "name": "note"}
CALL = {"id": "1", "name": "look_up", "arguments": {"ship": "Ann"}}


def words(text: str) -> Sequence[str]:
    return text.split()


async def test_a_given_tokenizer_counts_everything_that_is_sent() -> None:
    seen: list[str] = []
    threads: set[int] = set()

    def recording(text: str) -> Sequence[str]:
        seen.append(text)
        threads.add(threading.get_ident())
        return words(text)

    model = OpenAI("qwen3", base_url="http://10.0.0.7/v1", tokenizer=recording)
    plain = Request.of("qwen3", TEXT)
    assert await model.count_tokens(plain) == 200 + 10 + 16 + 8
    rich = Request.of(
        "qwen3",
        [
            {"role": "user", "content": [{"type": "text", "text": "Look."}, NOTE]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "Berth 4."},
        ],
        tools=[ToolSpec("look_up", "Looks up a ship.")],
    )
    seen.clear()
    count = await model.count_tokens(rich)
    sent = " ".join(seen)
    for part in ("Look.", "at sea", "note", '"ship":"Ann"', "Berth 4.", "Looks up a ship."):
        assert part in sent
    assert count is not None
    assert count > 16 + 3 * 8 + 64 + 16
    assert threading.get_ident() not in threads
    image = Request.of("qwen3", [{"role": "user", "content": [IMAGE]}])
    assert await model.count_tokens(image) is None
    await model.close()


async def test_without_a_tokenizer_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", _tiktoken())
    other = OpenAI("gpt-4o", base_url="http://10.0.0.7/v1")  # perhaps not the model of that name
    assert await other.count_tokens(Request.of("gpt-4o", TEXT)) is None
    monkeypatch.delitem(sys.modules, "tiktoken")
    assert await OpenAI("gpt-4o").count_tokens(Request.of("gpt-4o", TEXT)) is None
    assert await Offline().count_tokens(Request.of("offline", TEXT)) is None
    assert isinstance(other, TokenCounter)


async def test_tiktoken_counts_for_models_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    monkeypatch.setitem(sys.modules, "tiktoken", _tiktoken(loads))
    model = OpenAI("gpt-4o", api_key="sk-1")
    for _ in range(2):
        assert await model.count_tokens(Request.of("gpt-4o", TEXT)) == 234
    assert loads == ["gpt-4o"]
    with pytest.raises(KeyError):  # a model that tiktoken does not know
        await OpenAI("gpt-99", api_key="sk-1").count_tokens(Request.of("gpt-99", TEXT))
    await model.close()


async def test_tables_that_cannot_be_loaded_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[str] = []
    monkeypatch.setitem(sys.modules, "tiktoken", _tiktoken(loads, failures=1))
    model = OpenAI("gpt-4o", api_key="sk-1")
    with pytest.raises(ConnectionError):
        await model.count_tokens(Request.of("gpt-4o", TEXT))
    assert await model.count_tokens(Request.of("gpt-4o", TEXT)) == 234


def test_a_tokenizer_must_be_a_function() -> None:
    with pytest.raises(InvalidRequest, match="tokenizer must be a function"):
        OpenAI("m", tokenizer="cl100k_base")  # pyright: ignore[reportArgumentType]


async def test_offline_counts_what_it_reports() -> None:
    model = Offline(counts_tokens=True)
    request = Request.of("offline", TEXT, tools=[ToolSpec("look_up")])
    answer = await model.answer(request, None)
    assert await model.count_tokens(request) == answer.usage.input_tokens


def _tiktoken(loads: list[str] | None = None, *, failures: int = 0) -> ModuleType:
    """Return a module that stands in for tiktoken, which is not installed here."""
    module, left = ModuleType("tiktoken"), [None] * failures

    class Encoding:
        def encode_ordinary(self, text: str) -> Sequence[str]:
            return words(text)

    def encoding_for_model(name: str) -> Any:
        if loads is not None:
            loads.append(name)
        if left:
            left.pop()
            raise ConnectionError("no network")
        if name != "gpt-4o":
            raise KeyError(name)
        return Encoding()

    module.encoding_for_model = encoding_for_model  # pyright: ignore[reportAttributeAccessIssue]
    module.__spec__ = type(sys.__spec__)("tiktoken", None)
    return module
