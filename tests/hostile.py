"""Hypothesis strategies for hostile JSON: its depth, its size, its numbers and its Unicode.

``values()`` are what a decoder may hand on, ``documents()`` are the bytes that arrive, well formed
or not. ``nested`` and ``bomb`` make single ones of a given size.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from hypothesis import strategies as st

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


def texts(*, surrogates: bool = False) -> st.SearchStrategy[str]:
    """Texts that something may choke on; with ``surrogates`` also those that UTF-8 cannot say."""
    chosen = st.sampled_from(TEXTS) | st.text(max_size=40)
    return chosen | st.sampled_from(LONE_SURROGATES) if surrogates else chosen


def numbers() -> st.SearchStrategy[int | float]:
    """Numbers out of every range, as Python has them."""
    # Hypothesis shows what it drew, and Python shows no number of more than 4,300 digits.
    edges = [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**18, 10**30, -1, 0, 10**4_000]
    return st.sampled_from(edges) | st.integers() | st.floats()


def values(*, surrogates: bool = False, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Values as a decoder may hand them on: also deep ones, and ones that JSON does not have."""
    scalars = st.none() | st.booleans() | numbers() | texts(surrogates=surrogates)
    plain = st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.dictionaries(texts(surrogates=surrogates), inner, max_size=5)
        ),
        max_leaves=max_leaves,
    )
    deep = st.builds(nested_value, st.sampled_from((60, 70, 99, 120, 400)), scalars)
    return plain | deep


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


def nested_value(depth: int, value: Any = 1) -> Any:
    """Return a value that is nested so deep, in lists and dicts."""
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def bomb(size: int, *, fill: bytes = b" ", head: bytes = b"", tail: bytes = b"") -> bytes:
    """Return gzip of about a thousandth of that size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(head)
    for _ in range(size // 2**20):
        packed += packer.compress(fill * (2**20 // len(fill)))
    return packed + packer.compress(tail) + packer.flush()
