"""Validation of requests by DynamoDB's limits, before anything is sent, on every engine alike.

Each function returns its argument in canonical form, or raises an `InvalidRequest` that names the
field, the size and the limit. Engines get validated requests only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from holdfast.display import short_repr
from holdfast.errors import (
    InvalidItem,
    InvalidKey,
    InvalidQuery,
    InvalidTransaction,
    InvalidWrite,
)
from holdfast.storage.condition_validation import validate_attribute_name, validate_condition
from holdfast.storage.item import (
    ITEM_BYTES_MAX,
    Item,
    Value,
    canonical_item,
    canonical_value,
    comparable_type,
    item_bytes,
    item_too_large,
)
from holdfast.storage.layout import PK, SK, TOKEN, TTL, Index, Key, Layout
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.writes import (
    Check,
    Delete,
    Put,
    TransactionWrite,
    Update,
    Write,
)

__all__ = [
    "PK_BYTES_MAX",
    "SK_BYTES_MAX",
    "TOKEN_BYTES_MAX",
    "TRANSACTION_BYTES_MAX",
    "TRANSACTION_WRITES_MAX",
    "UPDATE_NAMES_MAX",
    "check_not_empty",
    "validate_batch",
    "validate_index",
    "validate_key",
    "validate_limit",
    "validate_partition",
    "validate_range",
    "validate_transaction",
    "validate_write",
]

PK_BYTES_MAX = 2048
SK_BYTES_MAX = 1024
TRANSACTION_WRITES_MAX = 100
TRANSACTION_BYTES_MAX = 4 * 1024 * 1024
TOKEN_BYTES_MAX = 64
# DynamoDB limits the text of an expression to 4 KB. An update with this many names always fits.
UPDATE_NAMES_MAX = 100
_KEY_BYTES_MAX = {PK: PK_BYTES_MAX, SK: SK_BYTES_MAX}
_READ_ONLY_ATTRIBUTES = (PK, SK, TOKEN)
_PAGE_ITEMS_MAX = 2**31 - 1
_TTL_MAX = 2**53


def validate_key(key: Key | tuple[str, str]) -> Key:
    """Return a key that an item can have.

    Raises:
        InvalidKey: a part is empty, too long or not a string.
    """
    if not isinstance(key, tuple) or len(key) != 2:
        raise InvalidKey(f"a key must be Key(pk, sk), got {short_repr(key)}")
    pk, sk = (
        _validate_key_text(key[0], PK, PK_BYTES_MAX),
        _validate_key_text(key[1], SK, SK_BYTES_MAX),
    )
    return key if type(key) is Key and pk is key.pk and sk is key.sk else Key(pk, sk)


def validate_partition(pk: str) -> str:
    """Return the key of a partition that can hold items.

    Raises:
        InvalidKey: the key is empty, too long or not a string.
    """
    return _validate_key_text(pk, PK, PK_BYTES_MAX)


def validate_write(write: Write, layout: Layout) -> Write:
    """Return a write that the table can carry out.

    Raises:
        InvalidKey, InvalidItem, ItemTooLarge, InvalidWrite: the write breaks a limit.
    """
    match write:
        case Put():
            return _validate_put(write, layout)
        case Update():
            return _validate_update(write, layout)
        case Delete():
            return Delete(validate_key(write.key), validate_condition(write.condition))
        case _:
            raise InvalidWrite(
                f"a write must be a Put, an Update or a Delete, got {short_repr(write)}"
            )


def validate_transaction(
    writes: Sequence[TransactionWrite], layout: Layout
) -> tuple[TransactionWrite, ...]:
    """Return the writes of a transaction that the table can carry out.

    Raises:
        InvalidTransaction: there are none, too many or too large writes, or two for one key.
    """
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidTransaction(
            f"a transaction must be a list of writes, got {short_repr(writes)}"
        )
    if not 1 <= len(writes) <= TRANSACTION_WRITES_MAX:
        raise InvalidTransaction(
            f"a transaction must have 1 to {TRANSACTION_WRITES_MAX} writes, got {len(writes)}",
            size=len(writes),
            limit=TRANSACTION_WRITES_MAX,
        )
    validated = tuple(
        _validate_check(write) if isinstance(write, Check) else validate_write(write, layout)
        for write in writes
    )
    repeated = _first_repeated(write.key for write in validated)
    if repeated is not None:
        raise InvalidTransaction(f"a transaction must not name {repeated} twice")
    size = sum(_bytes_sent(write) for write in validated)
    if size > TRANSACTION_BYTES_MAX:
        raise InvalidTransaction(
            f"a transaction must have at most {TRANSACTION_BYTES_MAX:,} bytes (4 MB), got {size:,}",
            size=size,
            limit=TRANSACTION_BYTES_MAX,
        )
    return validated


def validate_batch(writes: Iterable[Put | Delete], layout: Layout) -> tuple[Put | Delete, ...]:
    """Return the writes of a batch, which succeed or fail one by one.

    Raises:
        InvalidWrite: there is an update, a condition, or two writes for one key.
    """
    if not isinstance(writes, Iterable):
        raise InvalidWrite(f"a batch must be a list of writes, got {short_repr(writes)}")
    validated: list[Put | Delete] = []
    for write in writes:
        if not isinstance(write, Put | Delete):
            raise InvalidWrite(
                f"a batch must contain only Puts and Deletes, got {short_repr(write)}"
            )
        if write.condition is not None:
            raise InvalidWrite(
                "a write of a batch must not have a condition; use write or transact"
            )
        one = validate_write(write, layout)
        assert isinstance(one, Put | Delete)
        validated.append(one)
    repeated = _first_repeated(write.key for write in validated)
    if repeated is not None:
        raise InvalidWrite(f"a batch must not name {repeated} twice")
    return tuple(validated)


def check_not_empty(write: TransactionWrite) -> None:
    """Check that a validated write contains no empty text and no empty bytes, at any depth.

    DynamoDB accepts them since May 2020, except in keys. Older and compatible services do not. A
    record that leaves out such an attribute can be written to all of them.

    Raises:
        InvalidItem: an attribute is empty.
    """
    match write:
        case Put():
            _check_attributes_not_empty(write.item)
        case Update():
            _check_attributes_not_empty(write.set)
            _check_attributes_not_empty(write.set_if_absent)
        case _:
            pass


def _check_attributes_not_empty(item: Mapping[str, Any]) -> None:
    for name, value in item.items():
        empty = not value and type(value) in (str, bytes)
        if empty or (type(value) in (dict, list) and _has_empty(value)):
            raise InvalidItem(
                f"{name} must not be or contain empty text or bytes; leave it out instead",
                field=name,
            )


def _has_empty(value: Any) -> bool:
    if type(value) is dict:
        return any(map(_has_empty, cast(dict[str, Any], value).values()))
    if type(value) is list:
        return any(map(_has_empty, cast(list[Any], value)))
    return value == "" or value == b""


def validate_index(name: str | None, layout: Layout) -> Index | None:
    """Return the index of that name.

    Raises:
        InvalidQuery: the table has no such index.
    """
    if name is None:
        return None
    index = layout.index(name)
    if index is None:
        known = ", ".join(index.name for index in layout.indexes)
        raise InvalidQuery(f"index must be one of {known}, got {name!r}", field="index")
    return index


def validate_range(where: Range) -> Range:
    """Return a range that a query can read.

    Raises:
        InvalidKey: a bound cannot be a sort key.
        InvalidQuery: the range ends before it begins.
    """
    match where:
        case UpTo(sk) | At(sk) | Prefix(sk) | From(sk):
            _validate_key_text(sk, SK, SK_BYTES_MAX)
        case All():
            pass
        case Between(first, last):
            _validate_key_text(first, SK, SK_BYTES_MAX)
            _validate_key_text(last, SK, SK_BYTES_MAX)
            if first > last:
                raise InvalidQuery(
                    f"range must not end before it begins, and ends at {last!r:.80}", field="range"
                )
        case _:
            raise InvalidQuery(f"a range must be one of holdfast.storage, got {short_repr(where)}")
    return where


def validate_limit(limit: int | None) -> int | None:
    """Return how many items a page may have.

    Raises:
        InvalidQuery: ``limit`` is not a positive integer.
    """
    if limit is not None and (type(limit) is not int or not 1 <= limit <= _PAGE_ITEMS_MAX):
        raise InvalidQuery(
            f"limit must be an integer from 1 to {_PAGE_ITEMS_MAX:,}, got {short_repr(limit)}",
            field="limit",
        )
    return limit


def _validate_put(put: Put, layout: Layout) -> Put:
    item = canonical_item(put.item)
    if put.token is not None:
        item[TOKEN] = _validate_token(put.token)
    else:
        # The item was read from the table, with the token of an earlier write.
        item.pop(TOKEN, None)
    size = item_bytes(item)
    if size > ITEM_BYTES_MAX:
        raise item_too_large(item, size)
    if PK not in item or SK not in item:
        missing = SK if PK in item else PK
        raise InvalidKey(f"the item must have the attribute {missing}", field=missing)
    _check_reserved_attributes(item, layout)
    return Put(item, validate_condition(put.condition), put.token, size)


def _validate_update(update: Update, layout: Layout) -> Update:
    names = _attribute_names(update)
    if not names and update.token is None:
        raise InvalidWrite("an update must set, add or remove at least one attribute")
    if len(names) > UPDATE_NAMES_MAX:
        raise InvalidWrite(
            f"an update must name at most {UPDATE_NAMES_MAX} attributes, got {len(names)}",
            size=len(names),
            limit=UPDATE_NAMES_MAX,
        )
    distinct = set(names)
    if len(distinct) < len(names):
        repeated = _first_repeated(names)
        raise InvalidWrite(
            f"an update must name each attribute once, and names {repeated!r} twice", field=repeated
        )
    if not distinct.isdisjoint(_READ_ONLY_ATTRIBUTES):
        _reject_names(names)
    set_ = canonical_item(update.set)
    set_if_absent = canonical_item(update.set_if_absent) if update.set_if_absent else {}
    changes = {**set_, **set_if_absent} if set_if_absent else set_
    _check_reserved_attributes(changes, layout)
    size = item_bytes(changes)
    if size > ITEM_BYTES_MAX:
        raise item_too_large(changes, size)
    if update.token is not None:
        set_[TOKEN] = _validate_token(update.token)
    return Update(
        key=validate_key(update.key),
        set=set_,
        set_if_absent=set_if_absent,
        add={name: _validate_addend(value, name, layout) for name, value in update.add.items()},
        remove=tuple(update.remove),
        condition=validate_condition(update.condition),
        token=update.token,
    )


def _attribute_names(update: Update) -> list[str]:
    """Return every attribute that an update names."""
    parts = {"set": update.set, "set_if_absent": update.set_if_absent, "add": update.add}
    for part, given in parts.items():
        if type(given) is not dict and not isinstance(given, Mapping):
            raise InvalidWrite(f"{part} must be a dict of attributes", field=part)
    if not isinstance(update.remove, tuple | list):
        raise InvalidWrite("remove must be a tuple of attribute names", field="remove")
    for name in (*update.add, *update.remove):  # the others are checked with their values
        validate_attribute_name(name)
    return [*update.set, *update.set_if_absent, *update.add, *update.remove]


def _reject_names(names: Iterable[str]) -> None:
    """Raise an error about a name that the table reserves for itself."""
    for name in names:
        if name in (PK, SK):
            raise InvalidWrite(f"{name} is the item's key and must not be changed", field=name)
        if name == TOKEN:
            raise InvalidWrite(
                f"{TOKEN} must not be set; pass the update a token instead", field=TOKEN
            )


def _validate_check(check: Check) -> Check:
    condition = validate_condition(check.condition)
    if condition is None:
        raise InvalidWrite("a Check must have a condition; without one it checks nothing")
    return Check(validate_key(check.key), condition)


def _check_reserved_attributes(item: Item, layout: Layout) -> None:
    """Check the attributes that the table itself uses."""
    for name in layout.key_attributes:
        if name in item:
            _validate_key_text(item[name], name, _KEY_BYTES_MAX[name[-2:]])
    if TTL in item and not (type(item[TTL]) is int and abs(item[TTL]) <= _TTL_MAX):
        raise InvalidItem(
            f"{TTL} must be an integer, in seconds since 1970, got {short_repr(item[TTL])}",
            field=TTL,
            limit=_TTL_MAX,
        )


def _validate_addend(given: Any, name: str, layout: Layout) -> Value:
    value = canonical_value(given, name)
    if name in layout.key_attributes:
        raise InvalidWrite(f"add must not name {name}, which is a key", field=name)
    if comparable_type(value) != "N" and type(value) is not frozenset:
        raise InvalidWrite(f"add must give {name} a number or a set", field=name)
    if name == TTL:
        raise InvalidWrite(f"add must not name {TTL}; set it instead", field=TTL)
    return value


def _validate_key_text(value: Any, name: str, limit: int) -> str:
    if type(value) is str and 0 < len(value) <= limit and value.isascii():  # the common case
        return value
    if not isinstance(value, str):
        raise InvalidKey(f"{name} must be a string, got {type(value).__name__}", field=name)
    # Never a subclass such as a StrEnum: only plain text is stored and measured.
    value = str.__str__(value)
    if 0 < len(value) <= limit and value.isascii():
        return value
    if not value:
        raise InvalidKey(f"{name} must not be empty", field=name)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidKey(
            f"{name} must not contain a lone surrogate, which UTF-8 cannot express"
        ) from None
    if size > limit:
        raise InvalidKey(
            f"{name} must have at most {limit:,} bytes, got {size:,}",
            field=name,
            size=size,
            limit=limit,
        )
    return value


def _validate_token(token: Any) -> str:
    # ASCII only: it has one byte per character, and encoding cannot fail.
    if not isinstance(token, str) or not token.isascii() or not 0 < len(token) <= TOKEN_BYTES_MAX:
        raise InvalidWrite(
            f"token must be 1 to {TOKEN_BYTES_MAX} ASCII characters, got {short_repr(token)}",
            field="token",
            limit=TOKEN_BYTES_MAX,
        )
    return str.__str__(token)


def _bytes_sent(write: TransactionWrite) -> int:
    match write:
        case Put():
            return write.size
        case Update():
            return item_bytes({**write.set, **write.set_if_absent, **write.add})
        case _:
            return 0


def _first_repeated(values: Iterable[Any]) -> Any | None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
