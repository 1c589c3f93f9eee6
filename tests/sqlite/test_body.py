"""The bytes of items that earlier releases wrote are read for ever."""

from __future__ import annotations

from decimal import Decimal

from holdfast.storage.sqlite.item_codec import decode_attributes, encode_attributes

ITEM = {
    "text": "é",
    "whole": 7,
    "large": 10**20,
    "exact": Decimal("-0.5"),
    "raw": b"\x00\xff",
    "flag": True,
    "nothing": None,
    "list": [1, {"deep": Decimal("1E-130")}],
    "strings": frozenset({"b", "a"}),
    "numbers": frozenset({2, Decimal("1.5")}),
    "binaries": frozenset({b"b", b"a"}),
}
# By hand from the MessagePack specification: a map of 11 sorted names; ext 8 (c7), or fixext where
# the length is 1, 2, 4, 8 or 16, with our codes 1 to 4.
SCHEMA_1 = (
    "8b"
    "a8" + b"binaries".hex() + "c70704" + "92" + "c40161" + "c40162" +
    "a5" + b"exact".hex() + "d601" + b"-0.5".hex() +
    "a4" + b"flag".hex() + "c3"
    "a5" + b"large".hex() + "c71501" + b"100000000000000000000".hex() +
    "a4" + b"list".hex() + "92" + "01" + "81" + "a4" + b"deep".hex() +
    "c70601" + b"1E-130".hex() +
    "a7" + b"nothing".hex() + "c0"
    "a7" + b"numbers".hex() + "c70703" + "92" + "a3" + b"1.5".hex() + "a1" + b"2".hex() +
    "a3" + b"raw".hex() + "c402" + "00ff"
    "a7" + b"strings".hex() + "c70502" + "92" + "a161" + "a162"
    "a4" + b"text".hex() + "a2" + "é".encode().hex() +
    "a5" + b"whole".hex() + "07"
)  # fmt: skip


def test_bytes_of_schema_1_are_read() -> None:
    assert decode_attributes(bytes.fromhex(SCHEMA_1)) == ITEM


def test_bytes_are_written_as_schema_1_has_them() -> None:
    assert encode_attributes(ITEM).hex() == SCHEMA_1
