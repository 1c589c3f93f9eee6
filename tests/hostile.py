"""Hypothesis strategies for hostile input: JSON, values, answers, cursors and stored bytes.

``values()`` are what a decoder or a caller may hand on, ``documents()`` are bytes that arrive where
JSON should, ``completions()`` and ``converses()`` are answers of models in the two dialects,
``cursors()`` are what comes back from strangers, ``packed()`` and ``damages()`` are what may stand
in a store. The functions beside them make single ones of a given size.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import zstandard
from hypothesis import strategies as st

MB = 2**20

# More than the 4,300 digits that Python turns into a number or back.
DIGITS_MANY = 5_000

# Numbers as they stand in a document; Python's decoders take some that JSON does not have.
NUMBERS = (
    "0",
    "-0",
    "-1",
    "1e400",
    "-1e400",
    "1e-400",
    "0.1",
    "1E+2",
    str(2**53 + 1),
    str(2**63),
    str(2**64),
    str(-(2**63) - 1),
    "9" * 400,
    "9" * DIGITS_MANY,
    "-" + "9" * DIGITS_MANY,
    "0." + "1" * DIGITS_MANY,
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "1.",
    "٣",
    "²",
)

TEXTS = (
    "",
    "\x00",
    "\x1b[31m",
    "\x7f\x9b",
    "\u202e\u2066right to left",
    "\ufeff",
    "\uffff",
    "²",
    "٣",
    "é" * 300,
    "e" + "\u0301" * 300,
    "🏴\U000e0067\U000e007f",
    "\U0010ffff",
    "../../etc/passwd",
    "__proto__",
    "x```a\n" * 200 + ("\n" + " " * 50) * 200,
    "`" * 3_000,
    "-" * 3_000,
    "9" * DIGITS_MANY,
    "http://user:secret@host/",
)

LONE_SURROGATES = ("\ud800", "a\udfffb", "\udfff\ud800")


# --- values ---------------------------------------------------------------------------------------


def texts(*, surrogates: bool = False, large: bool = False) -> st.SearchStrategy[str]:
    """Texts that something may choke on; with ``surrogates`` also those that UTF-8 cannot say."""
    chosen = st.sampled_from(TEXTS) | st.text(max_size=40)
    chosen |= st.text(st.characters(categories=["Cf", "Cc", "Co"]), max_size=8)
    if large:
        chosen |= st.integers(1, 200_000).map(lambda size: "a" * size)
        chosen |= st.integers(1, 60_000).map(lambda size: "é" * size)
    return chosen | st.sampled_from(LONE_SURROGATES) if surrogates else chosen


def numbers() -> st.SearchStrategy[int | float]:
    """Numbers out of every range, as Python has them."""
    # Hypothesis shows what it drew, and Python shows no number of more than 4,300 digits.
    edges = [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**18, 10**30, -1, 0, 10**4_000]
    return st.sampled_from(edges) | st.integers() | st.floats()


def values(
    *, surrogates: bool = False, large: bool = False, max_leaves: int = 20
) -> st.SearchStrategy[Any]:
    """Values as a decoder may hand them on: also deep ones, and ones that JSON does not have.

    With ``large`` also what a caller of the library may pass: long, wide, very deep, with sharing
    that makes it endless once it is written out, and of kinds that JSON does not have.
    """
    kinds = texts(surrogates=surrogates, large=large)
    scalars = st.none() | st.booleans() | numbers() | kinds
    names: st.SearchStrategy[Any] = kinds
    if large:
        scalars |= st.binary(max_size=20) | st.just(DIGITS_MANY).map(lambda digits: 10**digits)
        names |= st.integers()

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        more = st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5)
        return more | st.tuples(inner, inner) if large else more

    plain = st.recursive(scalars, around, max_leaves=max_leaves)
    deep = st.builds(nested_value, st.sampled_from((60, 70, 99, 120, 400)), scalars)
    if not large:
        return plain | deep
    return st.one_of(
        plain,
        deep,
        st.builds(nested_value, st.integers(400, DIGITS_MANY)),
        st.builds(wide, st.integers(1, 300_000), st.sampled_from(([], {}, 0, "", "abc"))),
        st.builds(shared, st.integers(2, 12), st.sampled_from((2, 10, 100)), scalars),
        # A gigabyte and more once it is written out, and a megabyte before.
        st.sampled_from((10, 1_000, 100_000)).map(lambda count: wide(count, "a" * MB)),
    )


def nested_value(depth: int, value: Any = 1) -> Any:
    """Return a value that is nested so deep, in lists and dicts."""
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def wide(count: int, element: Any) -> list[Any]:
    """Return a list that has one element so many times."""
    return [element] * count


def shared(depth: int, width: int, value: Any) -> Any:
    """Return a value of a few hundred bytes that has ``width ** depth`` leaves written out."""
    for level in range(depth):
        value = [value] * width if level % 2 else dict.fromkeys(map(str, range(width)), value)
    return value


class Drawn:
    """A value that is shown by its beginning: written out, it may have no end."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return told(self.value)


def told(value: Any, depth: int = 0) -> str:
    """Return what a value begins with; all of it may be endless."""
    if isinstance(value, list | tuple) and depth < 4:
        return f"[{', '.join(told(each, depth + 1) for each in value[:4])}] of {len(value)}"
    if isinstance(value, dict) and depth < 4:
        some = itertools.islice(value.items(), 4)
        return f"{{{', '.join(f'{k!r:.40}: {told(v, depth + 1)}' for k, v in some)}}} {len(value)}"
    if isinstance(value, list | tuple | dict):
        return "…"
    return f"{value!r:.200}"


# --- documents ------------------------------------------------------------------------------------


def documents() -> st.SearchStrategy[bytes]:
    """Bytes that arrive where JSON should: well formed, cut, deep, or not even text."""
    return st.one_of(
        fragments().map(str.encode),
        st.binary(max_size=60),
        st.tuples(fragments(), st.integers(0, 39)).map(lambda cut: cut[0].encode()[: cut[1]]),
        st.sampled_from((b"", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a":1}{"a":2}', b'"\\ud800"')),
    )


def fragments() -> st.SearchStrategy[str]:
    """Pieces of JSON as text, to be put into a document at any place."""
    quoted = texts(surrogates=True).map(json.dumps)
    scalars = st.sampled_from((*NUMBERS, "null", "true", '"\\ud800"', '"\\u0000"')) | quoted
    return scalars | st.one_of(
        st.lists(scalars, max_size=4).map(lambda each: f"[{','.join(each)}]"),
        st.lists(st.tuples(quoted, scalars), max_size=4).map(
            lambda pairs: "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"
        ),
        st.sampled_from((65, 101, 1_000, 100_000)).map(nested),
        st.sampled_from((65, 101, 1_000)).map(lambda depth: nested(depth, opening='{"a":')),
    )


def nested(depth: int, *, opening: str = "[") -> str:
    """Return JSON that is nested so deep."""
    closing = "]" if opening == "[" else "}"
    return opening * depth + "1" + closing * depth


def bomb(size: int, *, fill: bytes = b" ", head: bytes = b"", tail: bytes = b"") -> bytes:
    """Return gzip of about a thousandth of that size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(head)
    for _ in range(size // MB):
        packed += packer.compress(fill * (MB // len(fill)))
    return packed + packer.compress(tail) + packer.flush()


# --- answers of models ----------------------------------------------------------------------------

FIELDS = (
    *("content", "refusal", "finish", "calls", "id", "name", "arguments", "index", "usage"),
    *("input", "output", "cached", "model", "choices", "error", "code", "unknown"),
)


def completions(*, stream: bool) -> st.SearchStrategy[bytes]:
    """Answers in the dialect of chat completions, of which one field may hold anything."""
    bodies = st.builds(completion, st.sampled_from(FIELDS), fragments(), stream=st.just(stream))
    return bodies | (documents().map(as_event) if stream else documents())


def completion(field: str, value: str, *, stream: bool) -> bytes:
    """Return an answer that has a piece of JSON in one field."""

    def at(name: str, otherwise: str) -> str:
        return value if name == field else otherwise

    call = (
        f'{{"index":{at("index", "0")},"id":{at("id", "null")},"function":'
        f'{{"name":{at("name", "null")},"arguments":{at("arguments", "null")}}}}}'
    )
    message = (
        f'{{"content":{at("content", "null")},"refusal":{at("refusal", "null")},'
        f'"tool_calls":{at("calls", f"[{call}]")}}}'
    )
    details = f'{{"cached_tokens":{at("cached", "0")}}}'
    counted = (
        f'{{"prompt_tokens":{at("input", "1")},"completion_tokens":{at("output", "1")},'
        f'"prompt_tokens_details":{details}}}'
    )
    choice = (
        f'{{"{"delta" if stream else "message"}":{message},'
        f'"finish_reason":{at("finish", "null")},"unknown":{at("unknown", "0")}}}'
    )
    error = f'{{"message":"x","code":{value}}}' if field == "code" else at("error", "null")
    body = (
        f'{{"choices":{at("choices", f"[{choice}]")},"usage":{at("usage", counted)},'
        f'"model":{at("model", "null")},"error":{error}}}'
    ).encode(errors="surrogatepass")
    return as_event(body) if stream else body


def as_event(body: bytes) -> bytes:
    """Return a document as the only event of a stream."""
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"


def converses(*, stream: bool) -> st.SearchStrategy[Any]:
    """Answers of Bedrock, of which one field may hold anything."""
    make = converse_events if stream else converse
    return st.builds(make, values(surrogates=True), st.integers(0, 11))


def converse(value: Any, at: int) -> dict[str, Any]:
    """Return an answer of Bedrock that has a value at one place."""

    def put(place: int, otherwise: Any) -> Any:
        return value if place == at else otherwise

    content = [{"text": put(8, "a")}, {"toolUse": _use(value, at)}]
    return {
        "output": put(6, {"message": {"content": put(7, content)}}),
        "stopReason": put(9, "end_turn"),
        "usage": _usage(value, at),
    }


def converse_events(value: Any, at: int) -> list[Any]:
    """Return the events of an answer of Bedrock that has a value at one place."""

    def put(place: int, otherwise: Any) -> Any:
        return value if place == at else otherwise

    use = _use(value, at)
    return [
        {"contentBlockDelta": {"contentBlockIndex": put(6, 0), "delta": {"text": put(8, "a")}}},
        {"contentBlockStart": {"contentBlockIndex": put(7, 1), "start": {"toolUse": use}}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": use}}},
        put(10, {"messageStop": {"stopReason": put(9, "end_turn")}}),
        put(11, {"metadata": {"usage": _usage(value, at)}}),
    ]


def _use(value: Any, at: int) -> dict[str, Any]:
    use = {"toolUseId": "1", "name": "f", "input": {}}
    places = {0: "toolUseId", 1: "name", 2: "input"}
    return {**use, places[at]: value} if at in places else use


def _usage(value: Any, at: int) -> Any:
    usage = {"inputTokens": 1, "outputTokens": 1}
    places = {4: "inputTokens", 5: "outputTokens"}
    return value if at == 3 else {**usage, places[at]: value} if at in places else usage


# --- cursors --------------------------------------------------------------------------------------

GENERATION = "018bcfe5-6800-7000-8000-000000000000"
_POSITIONS = ("0", "1", "7", "99999999", "999999999", "-1", "+1", "٣", "²", "1e3", "1_0", " 1", "")
_OF_A_LIST = (
    *("0000000000000#x", "9999999999999#x", "1700000000000#", "#x", "1700000000000"),
    *("٣" * 13 + "#x", "170000000000²#x", "1700000000000#" + "x" * 5_000, "1700000000000#\ud800"),
    *("1700000000000#\0", "1700000000000#a#b", "1700000000000#~", "1700000000000# "),
    *("1700000000000#\U0010ffff", "x" * 100_000, "9" * DIGITS_MANY),
)


def cursors() -> st.SearchStrategy[Any]:
    """What may come back where a cursor was handed out, of whatever kind."""
    anything = st.text(st.characters(exclude_categories=()), max_size=60)
    encoded = documents() | values(max_leaves=5).map(_as_json)
    return st.one_of(
        anything,
        st.sampled_from(_OF_A_LIST),
        st.builds("{}#{}".format, st.text("0123456789٣", min_size=12, max_size=14), anything),
        st.lists(
            st.just(GENERATION) | st.sampled_from(_POSITIONS) | anything, min_size=1, max_size=6
        ).map(".".join),
        encoded.map(lambda data: base64.urlsafe_b64encode(data[: 8 * MB]).decode().rstrip("=")),
        st.none() | st.integers() | st.binary() | st.lists(st.integers()),
        values(surrogates=True, max_leaves=5),
    )


def _as_json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b"null"


# --- what is stored -------------------------------------------------------------------------------


def packed() -> st.SearchStrategy[bytes]:
    """Bytes in the place of a packed value or of events: cut, changed, bombs, lies about sizes."""
    plain = _plain()
    return st.one_of(
        st.binary(max_size=100),
        plain.map(lambda data: b"\x00" + data),
        plain.map(framed),
        plain.map(lambda data: framed(data, with_size=False)),
        st.builds(changed, plain.map(framed), st.integers(0, 10**6), st.integers(0, 255)),
        st.sampled_from((2**20 + 1, 2**31, 2**40, 2**63)).map(claiming),
        st.sampled_from((50 * MB, 200 * MB)).map(frame_bomb),
    )


def _plain() -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.binary(max_size=200),
        values(max_leaves=12).map(_as_msgpack),
        st.integers(1, 3_000_000).map(lambda size: b"\xc6" + size.to_bytes(4, "big") + bytes(size)),
        st.integers(1, 2_000_000).map(empty_lists),
        st.integers(1, 5_000).map(lambda depth: b"\x91" * depth + b"\xc0"),
        st.sampled_from(
            (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01")
        ),
    )


def empty_lists(count: int) -> bytes:
    """Return MessagePack of so many lists, each of which takes 64 bytes once it is unpacked."""
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


def framed(plain: bytes, *, with_size: bool = True) -> bytes:
    """Return bytes as they are kept, compressed."""
    return b"\x01" + zstandard.ZstdCompressor(write_content_size=with_size).compress(plain)


def claiming(size: int) -> bytes:
    """Return packed bytes of a frame that says that it has so many bytes."""
    return b"\x01" + b"\x28\xb5\x2f\xfd" + b"\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


def frame_bomb(size: int) -> bytes:
    """Return a few KB that unpack to so many, made without having them all at once."""
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    zeros = bytes(MB)
    parts = [packer.compress(zeros) for _ in range(size // MB)]
    return b"\x01" + b"".join(parts) + packer.flush()


def changed(data: bytes, at: int, to: int) -> bytes:
    """Return bytes of which one is another."""
    made = bytearray(data)
    made[at % len(made)] = to
    return bytes(made)


def _as_msgpack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b"\xc0"


class Damage(NamedTuple):
    """What happened to a row: an attribute is gone, or is another, or there are many more."""

    at: int
    """Which attribute, counted round."""
    to: Any
    """What it is now; `GONE`, or `MANY` for a thousand further ones."""

    def done_to(self, item: dict[str, Any], *, kept: Callable[[str], bool]) -> dict[str, Any]:
        """Return the row as it stands there then; of ``kept`` attributes nothing changes."""
        names = sorted(name for name in item if not kept(name))
        if not names or self.to == MANY:
            return {
                **item,
                **{f"{name}{number}": 1 for name in ("x", "é") for number in range(500)},
            }
        name = names[self.at % len(names)]
        if self.to == GONE:
            return {known: value for known, value in item.items() if known != name}
        return {**item, name: self.to}


GONE, MANY = "(gone)", "(many)"


def damages() -> st.SearchStrategy[Damage]:
    """Changes of a row that leave it one of the store's, and make it senseless."""
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from((0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**37)),
        st.sampled_from((Decimal("0.5"), Decimal("-1E-100"), Decimal("1E125"))),
        st.sampled_from(
            ("running", "waiting", "finished", "x", "٣", "²", "\x00", "a" * 5_000, "é")
        ),
        st.binary(max_size=20),
        packed().filter(lambda data: len(data) < 100_000),
    )
    sets = st.sampled_from((frozenset({"a"}), frozenset({1, 2}), frozenset({b"x"})))
    nested = st.recursive(
        scalars | sets,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(("a", "visit", "kind", "graph", "id")), inner, max_size=3
            )
        ),
        max_leaves=6,
    )
    deep = st.sampled_from((5, 25)).map(nested_value)
    return st.builds(
        Damage, st.integers(0, 60), st.sampled_from((GONE, GONE, MANY)) | nested | deep
    )
