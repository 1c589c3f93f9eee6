"""What a model may be asked, and what is made of its answers."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidAnswer, InvalidPrompt
from holdfast.model.invocation import (
    Answer,
    Request,
    ToolCall,
    ToolSpec,
    Usage,
    input_tokens_max,
    parsed_json,
)
from holdfast.model.prompt import validated_messages, validated_params
from holdfast.records.prompt_hash import prompt_hash

CALL = {"id": "c1", "name": "look_up", "arguments": {"a": [1, None]}}
PICTURE = {"type": "image", "media_type": "image/png", "data": b"\x89PNG"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_text_is_one_message_of_the_user() -> None:
    assert validated_messages("Hello.") == [{"role": "user", "content": "Hello."}]


def test_messages_are_kept_as_they_are_sent() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        user(["See:", {"type": "text", "text": "this"}, PICTURE]),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "no", "error": True},
        {"role": "tool", "tool_call_id": "c1", "content": [PICTURE], "error": False},
        {"role": "assistant", "content": "Done."},
    ]
    kept = validated_messages(messages)
    assert kept == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See:"},
                {"type": "text", "text": "this"},
                PICTURE,
            ],
        },
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "no", "error": True},
        {"role": "tool", "tool_call_id": "c1", "content": [PICTURE]},
        {"role": "assistant", "content": "Done."},
    ]
    assert validated_messages(kept) == kept
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept)) == kept


def test_bytes_and_base64_are_the_same() -> None:
    text = base64.b64encode(PICTURE["data"]).decode()
    encoded = {"type": "image", "media_type": "image/png", "data": text}
    assert validated_messages([user([encoded])]) == validated_messages([user([PICTURE])])


def test_a_call_may_be_given_as_it_came() -> None:
    calls = [ToolCall("c1", "look_up", {"a": 1}), ToolCall("c2", "f", malformed="{")]
    (kept,) = validated_messages([{"role": "assistant", "content": "", "tool_calls": calls}])
    assert kept["tool_calls"] == [
        {"id": "c1", "name": "look_up", "arguments": {"a": 1}},
        {"id": "c2", "name": "f", "arguments": {}},
    ]


def test_an_answer_is_the_message_by_which_it_goes_on() -> None:
    answer = Answer(text="I look.", tool_calls=(ToolCall("c1", "look_up", {"a": 1}),))
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    kept = validated_messages([answer.message(), result])
    assert kept[0]["tool_calls"][0]["name"] == "look_up"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (5, "messages"),
        (b"text", "messages"),
        ([], "messages"),
        ([{"role": "system", "content": "only"}], "messages"),
        (["text"], "messages[0]"),
        ([user("a"), {"content": "b"}], "messages[1].role"),
        ([{"role": "robot", "content": "b"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(None)], "messages[0].content"),
        ([user([])], "messages[0].content"),
        ([user("lone \ud800")], "messages[0].content"),
        ([user([5])], "messages[0].content[0]"),
        ([user([{"type": "video"}])], "messages[0].content[0].type"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user(["a", {"type": "text", "text": "b", "x": 1}])], "messages[0].content[1]"),
        ([user([{**PICTURE, "data": b""}])], "messages[0].content[0].data"),
        ([user([{**PICTURE, "data": "not base64!"}])], "messages[0].content[0].data"),
        ([user([{**PICTURE, "data": 5}])], "messages[0].content[0].data"),
        ([user([{**PICTURE, "media_type": "png"}])], "messages[0].content[0].media_type"),
        (
            [user([{**PICTURE, "media_type": "application/pdf"}])],
            "messages[0].content[0].media_type",
        ),
        (
            [user([{**PICTURE, "type": "document"}])],
            "messages[0].content[0].media_type",
        ),
        ([{"role": "assistant", "content": [PICTURE]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "a", "name": "me"}], "messages[0]"),
        ([{"role": "user", "content": "a", "tool_calls": [CALL]}], "messages[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": {}, "x": 1}], "messages[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": "c"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": ""}]}],
            "messages[0].tool_calls[0].id",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "c" * 257}]}],
            "messages[0].tool_calls[0].id",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "name": "a b"}]}],
            "messages[0].tool_calls[0].name",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "arguments": "{}"}]}],
            "messages[0].tool_calls[0].arguments",
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{**CALL, "arguments": {"a": id}}],
                }
            ],
            "messages[0].tool_calls[0].arguments",
        ),
        ([user("a"), {"role": "tool", "content": "b"}], "messages[1].tool_call_id"),
        (
            [user("a"), {"role": "tool", "tool_call_id": "c1", "content": "b"}],
            "messages[1].tool_call_id",
        ),
        (
            [
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "b", "error": "yes"},
            ],
            "messages[1].error",
        ),
    ],
)
def test_a_message_that_makes_no_sense_is_named(messages: Any, field: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        validated_messages(messages)
    assert caught.value.field == field


def test_too_many_are_named_with_their_limit() -> None:
    with pytest.raises(InvalidPrompt) as caught:
        validated_messages([user("a")] * 10_001)
    assert (caught.value.size, caught.value.limit) == (10_001, 10_000)
    with pytest.raises(InvalidPrompt) as caught:
        Request.of("m", "a", tools=[ToolSpec(f"t{number}") for number in range(129)])
    assert (caught.value.field, caught.value.size, caught.value.limit) == ("tools", 129, 128)


def test_what_only_the_service_knows_is_extra() -> None:
    # Whatever the service calls them: also as an option or a parameter here is called.
    extra = {"effort": "low", "key": "k", "timeout": 5, "stream": True, "seed": "a", "extra": 1}
    kept = validated_params(temperature=1, stop="END", extra=extra, seed=None)
    assert kept == {"temperature": 1.0, "stop": ["END"], "extra": extra}
    assert type(kept["temperature"]) is float
    assert validated_params() == {}


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"temperature": -1},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"stop": [""]},
        {"stop": 5},
        {"stop": ["x"] * 17},
        {"seed": 2**63},
        {"extra": 5},
        {"extra": {"a": 1j}},
    ],
    ids=str,
)
def test_a_parameter_that_makes_no_sense_is_named(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        validated_params(**params)
    assert caught.value.field == next(iter(params))


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"tools": [ToolSpec("a"), ToolSpec("a")]}, "tools[1].name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [ToolSpec("a")], "tool_choice": "b"}, "tool_choice"),
        ({"output": {"type": "array"}}, "output"),
        ({"output": "text"}, "output"),
    ],
)
def test_a_request_that_makes_no_sense_is_named(how: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        Request.of("m", "Hello.", **how)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (("a b",), "name"),
        (("x" * 65,), "name"),
        (("auto",), "name"),
        (("a", 5), "description"),
        (("a", "", {"type": "string"}), "parameters"),
        (("a", "", {"type": "object", "default": object()}), "parameters"),
    ],
)
def test_a_tool_that_makes_no_sense_is_named(spec: tuple[Any, ...], field: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        ToolSpec(*spec)
    assert caught.value.field == field


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), st.randoms(use_true_random=False))
def test_the_hash_does_not_see_the_order_of_names(fields: dict[str, Any], draw: Any) -> None:
    names = list(fields)
    draw.shuffle(names)
    shuffled = {name: fields[name] for name in names}
    one = Request.of("m", "a", output={"type": "object", "x": fields}, extra=fields)
    other = Request.of("m", "a", output={"x": shuffled, "type": "object"}, extra=shuffled)
    assert prompt_hash(one) == prompt_hash(other)


def test_the_hash_sees_everything_but_the_key() -> None:
    tool = ToolSpec("f", "does f")
    basis: dict[str, Any] = {"tools": [tool, ToolSpec("g")], "temperature": 0.5}
    output = {"type": "object"}
    requests = [
        Request.of("m", "Hello.", **basis),
        Request.of("n", "Hello.", **basis),
        Request.of("m", "Hello!", **basis),
        Request.of("m", [user(["Hello."])], **basis),
        Request.of("m", "Hello.", **basis | {"tools": [tool]}),
        Request.of("m", "Hello.", **basis | {"tools": [ToolSpec("f"), ToolSpec("g")]}),
        Request.of("m", "Hello.", **basis | {"temperature": 0.6}),
        Request.of("m", "Hello.", **basis, max_tokens=5),
        Request.of("m", "Hello.", **basis, tool_choice="any"),
        Request.of("m", "Hello.", **basis, output=output),
        Request.of("m", "Hello.", **basis, extra={"top_k": 1}),
    ]
    assert len({prompt_hash(request) for request in requests}) == len(requests)
    keyed = Request.of("m", "Hello.", **basis, idempotency_key="k")
    assert prompt_hash(keyed) == prompt_hash(requests[0])


def test_the_hash_stays_what_it_is() -> None:
    """Answers are found by it, also those that another release has kept."""
    request = Request.of("m", "Hello.", tools=[ToolSpec("f")], temperature=0, extra={"top_k": 1})
    assert prompt_hash(request).hex() == "621468afe5fd72f40bb8eb27271606b6"


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' \n{"a": 1}\n ',
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}\n```',
        'Here it is:\n```json\n{"a": 1}\n```\nAnything else?',
        '```JSON  \n{"a":\n1}\n  ```',
    ],
)
def test_json_may_stand_in_a_fence(text: str) -> None:
    assert parsed_json(text) == {"a": 1}
    assert Answer(text=text).json() == {"a": 1}


def test_a_fence_in_a_text_of_the_json_is_not_one() -> None:
    value = {"code": "```\nx\n```"}
    assert parsed_json(msgspec.json.encode(value).decode()) == value


@pytest.mark.parametrize(
    "text",
    ["", "yes", "{", '{"a": 1} and more', "```json\n{\n```", "NaN", "9" * 30, "[" * 100_000],
    ids=lambda text: text[:10],
)
def test_what_is_not_json_says_so(text: str) -> None:
    with pytest.raises(InvalidAnswer, match="not JSON"):
        parsed_json(text)


def test_the_value_is_taken_where_there_is_one() -> None:
    assert Answer(text="not JSON", value={"a": 1}).json() == {"a": 1}


def test_arguments_are_read_from_text() -> None:
    assert ToolCall.read("i", "f", '{"a": 1}') == ToolCall("i", "f", {"a": 1})
    assert ToolCall.read("i", "f", " ") == ToolCall("i", "f", {})
    assert ToolCall.read("i", "f", "[1]") == ToolCall("i", "f", {}, malformed="[1]")


@given(
    st.text(max_size=20),
    st.lists(
        st.builds(
            ToolCall,
            st.text(min_size=1, max_size=5),
            st.text(max_size=5),
            st.dictionaries(st.text(max_size=3), json_values, max_size=3),
            st.text(max_size=3),
        ),
        max_size=2,
    ),
    st.builds(Usage, *[st.integers(0, 10**12)] * 3),
    st.sampled_from(["end", "tool_calls", "length", "filtered"]),
    json_values,
)
def test_an_answer_comes_back_as_it_was(
    text: str, calls: list[ToolCall], usage: Usage, stop: Any, value: Any
) -> None:
    answer = Answer(
        text=text, tool_calls=tuple(calls), usage=usage, stop_reason=stop, value=value, model="m"
    )
    assert msgspec.convert(msgspec.to_builtins(answer), Answer) == answer


def test_what_is_reserved_covers_each_part() -> None:
    def bound(content: Any, **how: Any) -> int:
        request = Request.of("m", [user(content)], **how)
        return input_tokens_max(request, image_tokens=1_000, document_tokens=9_000)

    def document(kind: str) -> list[dict[str, Any]]:
        return [{"type": "document", "media_type": kind, "data": b"x" * 500, "name": "n"}]

    empty = bound("")
    assert bound("é" * 50) - empty == 100
    assert bound([PICTURE, PICTURE]) - empty >= 2_000
    assert bound(document("application/pdf")) - empty >= 9_000
    assert 500 <= bound(document("text/plain")) - empty < 600
    assert bound("", tools=[ToolSpec("f", "x" * 300)]) - empty >= 1_300
    assert bound("", output={"type": "object", "description": "x" * 300}) - empty >= 1_300
    called = [{"role": "assistant", "tool_calls": [{**CALL, "arguments": {"a": "x" * 400}}]}]
    request = Request.of("m", called)
    assert input_tokens_max(request, image_tokens=0, document_tokens=0) > 400
