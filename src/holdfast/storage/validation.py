"""What may pass: DynamoDB's limits, checked before anything is sent, for every engine alike.

Each function returns its argument in canonical form or raises an `InvalidRequest` that names the
field, the size and the limit. Behind these functions nothing is malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from holdfast.errors import (
    InvalidItem,
    InvalidKey,
    InvalidQuery,
    InvalidTransaction,
    InvalidWrite,
)
from holdfast.storage.item import (
    ITEM_BYTES_MAX,
    Item,
    Value,
    canonical_item,
    canonical_name,
    canonical_value,
    comparable_type,
    item_bytes,
    item_too_large,
)
from holdfast.storage.layout import PK, SK, TOKEN, TTL, Index, Key, Layout
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Delete,
    Equals,
    Greater,
    Less,
    Present,
    Put,
    TransactionWrite,
    Update,
    Write,
)

__all__ = [
    "CONDITION_PARTS_MAX",
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
# An expression may have 4 KB of text: so many names and so many parts always fit.
UPDATE_NAMES_MAX = 100
CONDITION_PARTS_MAX = 60
_KEY_BYTES_MAX = {PK: PK_BYTES_MAX, SK: SK_BYTES_MAX}
_READ_ONLY_ATTRIBUTES = (PK, SK, TOKEN)
_PAGE_ITEMS_MAX = 2**31 - 1
_TTL_MAX = 2**53


def validate_key(key: Key | tuple[str, str]) -> Key:
    """Return a key that an item can have.

    Raises:
        InvalidKey: empty, too long or not two strings.
    """
    if not isinstance(key, tuple) or len(key) != 2:
        raise InvalidKey(f"a key is Key(pk, sk), not {_shown(key)}")
    pk, sk = (
        _validate_key_text(key[0], PK, PK_BYTES_MAX),
        _validate_key_text(key[1], SK, SK_BYTES_MAX),
    )
    return key if type(key) is Key and pk is key.pk and sk is key.sk else Key(pk, sk)


def validate_partition(pk: str) -> str:
    """Return the key of a partition that can hold items.

    Raises:
        InvalidKey: empty, too long or not a string.
    """
    return _validate_key_text(pk, PK, PK_BYTES_MAX)


def validate_write(write: Write, layout: Layout) -> Write:
    """Return a write that the table can carry out.

    Raises:
        InvalidKey, InvalidItem, ItemTooLarge, InvalidWrite: what is wrong with it.
    """
    match write:
        case Put():
            return _validate_put(write, layout)
        case Update():
            return _validate_update(write, layout)
        case Delete():
            return Delete(validate_key(write.key), _validate_condition(write.condition))
        case _:
            raise InvalidWrite(f"a write is a Put, an Update or a Delete, not {_shown(write)}")


def validate_transaction(
    writes: Sequence[TransactionWrite], layout: Layout
) -> tuple[TransactionWrite, ...]:
    """Return the writes of a transaction that the table can carry out.

    Raises:
        InvalidTransaction: none, too many or too large writes, or one key twice.
    """
    if not isinstance(writes, Sequence) or isinstance(writes, str | bytes):
        raise InvalidTransaction(f"a transaction is a list of writes, not {_shown(writes)}")
    if not 1 <= len(writes) <= TRANSACTION_WRITES_MAX:
        raise InvalidTransaction(
            f"a transaction has 1 to {TRANSACTION_WRITES_MAX} writes, not {len(writes)}",
            size=len(writes),
            limit=TRANSACTION_WRITES_MAX,
        )
    validated = tuple(
        _validate_check(write) if isinstance(write, Check) else validate_write(write, layout)
        for write in writes
    )
    twice = _first_repeated(write.key for write in validated)
    if twice is not None:
        raise InvalidTransaction(f"a transaction touches {twice} twice")
    size = sum(_bytes_sent(write) for write in validated)
    if size > TRANSACTION_BYTES_MAX:
        raise InvalidTransaction(
            f"the transaction has {size:,} bytes; the limit is {TRANSACTION_BYTES_MAX:,} (4 MB)",
            size=size,
            limit=TRANSACTION_BYTES_MAX,
        )
    return validated


def validate_batch(writes: Iterable[Put | Delete], layout: Layout) -> tuple[Put | Delete, ...]:
    """Return the writes of a batch, each of which stands for itself.

    Raises:
        InvalidWrite: an update, a condition, or one key twice.
    """
    if not isinstance(writes, Iterable):
        raise InvalidWrite(f"a batch is several writes, not {_shown(writes)}")
    validated: list[Put | Delete] = []
    for write in writes:
        if not isinstance(write, Put | Delete):
            raise InvalidWrite(f"a batch holds Puts and Deletes, not {_shown(write)}")
        if write.condition is not None:
            raise InvalidWrite("a write of a batch cannot have a condition; use write or transact")
        one = validate_write(write, layout)
        assert isinstance(one, Put | Delete)
        validated.append(one)
    twice = _first_repeated(write.key for write in validated)
    if twice is not None:
        raise InvalidWrite(f"a batch touches {twice} twice")
    return tuple(validated)


def check_not_empty(write: TransactionWrite) -> None:
    """Check that an admitted write holds no empty text and no empty bytes, however deep.

    The service takes them since May 2020, save in keys; engines that are older, or only like it,
    do not. A record that leaves such an attribute out is written everywhere.

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
                f"{name} must not be or hold empty text or bytes; leave it out instead", field=name
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
        raise InvalidQuery(f"there is no index {name!r}; there are {known}", field="index")
    return index


def validate_range(where: Range) -> Range:
    """Return a range that a query can read.

    Raises:
        InvalidKey: a bound that cannot be a sort key.
        InvalidQuery: a range that ends before it begins.
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
                raise InvalidQuery(f"the range ends ({last!r:.80}) before it begins", field="range")
        case _:
            raise InvalidQuery(f"a range is one of storage.ranges, not {_shown(where)}")
    return where


def validate_limit(limit: int | None) -> int | None:
    """Return how many items a page may have.

    Raises:
        InvalidQuery: not a positive whole number.
    """
    if limit is not None and (type(limit) is not int or not 1 <= limit <= _PAGE_ITEMS_MAX):
        raise InvalidQuery(
            f"limit is a whole number from 1 to {_PAGE_ITEMS_MAX:,}, not {_shown(limit)}",
            field="limit",
        )
    return limit


def _validate_put(put: Put, layout: Layout) -> Put:
    item = canonical_item(put.item)
    if put.token is not None:
        item[TOKEN] = _validate_token(put.token)
    else:
        # It came with the item from a read, and told of another write than this.
        item.pop(TOKEN, None)
    size = item_bytes(item)
    if size > ITEM_BYTES_MAX:
        raise item_too_large(item, size)
    if PK not in item or SK not in item:
        missing = SK if PK in item else PK
        raise InvalidKey(f"the item has no {missing}", field=missing)
    _check_reserved_attributes(item, layout)
    return Put(item, _validate_condition(put.condition), put.token, size)


def _validate_update(update: Update, layout: Layout) -> Update:
    names = _attribute_names(update)
    if not names and update.token is None:
        raise InvalidWrite("an update sets, adds or removes at least one attribute")
    if len(names) > UPDATE_NAMES_MAX:
        raise InvalidWrite(
            f"an update names at most {UPDATE_NAMES_MAX} attributes, not {len(names)}",
            size=len(names),
            limit=UPDATE_NAMES_MAX,
        )
    distinct = set(names)
    if len(distinct) < len(names):
        twice = _first_repeated(names)
        raise InvalidWrite(f"an update names the attribute {twice!r} twice", field=twice)
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
        condition=_validate_condition(update.condition),
        token=update.token,
    )


def _attribute_names(update: Update) -> list[str]:
    """Return every attribute that an update names."""
    parts = {"set": update.set, "set_if_absent": update.set_if_absent, "add": update.add}
    for part, given in parts.items():
        if type(given) is not dict and not isinstance(given, Mapping):
            raise InvalidWrite(f"{part} is a dict of attributes", field=part)
    if not isinstance(update.remove, tuple | list):
        raise InvalidWrite("remove is a tuple of attributes' names", field="remove")
    for name in (*update.add, *update.remove):  # others are checked with what they are set to
        _validate_attribute_name(name)
    return [*update.set, *update.set_if_absent, *update.add, *update.remove]


def _reject_names(names: Iterable[str]) -> None:
    """Raise what is wrong with the names of an update that the table keeps for itself."""
    for name in names:
        if name in (PK, SK):
            raise InvalidWrite(f"{name} is the item's key and cannot be changed", field=name)
        if name == TOKEN:
            raise InvalidWrite(
                f"{TOKEN} is written by the table; give the update a token instead", field=TOKEN
            )


def _validate_check(check: Check) -> Check:
    condition = _validate_condition(check.condition)
    if condition is None:
        raise InvalidWrite("a Check has a condition; without one it checks nothing")
    return Check(validate_key(check.key), condition)


def _check_reserved_attributes(item: Item, layout: Layout) -> None:
    """Check the attributes that mean something to the table itself."""
    for name in layout.key_attributes:
        if name in item:
            _validate_key_text(item[name], name, _KEY_BYTES_MAX[name[-2:]])
    if TTL in item and not (type(item[TTL]) is int and abs(item[TTL]) <= _TTL_MAX):
        raise InvalidItem(
            f"{TTL} is whole seconds since 1970, not {_shown(item[TTL])}", field=TTL, limit=_TTL_MAX
        )


def _validate_addend(given: Any, name: str, layout: Layout) -> Value:
    value = canonical_value(given, name)
    if name in layout.key_attributes:
        raise InvalidWrite(f"{name} is a key; nothing can be added to it", field=name)
    if comparable_type(value) != "N" and type(value) is not frozenset:
        raise InvalidWrite(f"{name}: only a number or a set can be added", field=name)
    if name == TTL:
        raise InvalidWrite(f"nothing can be added to {TTL}; set it", field=TTL)
    return value


def _validate_condition(condition: Condition | None) -> Condition | None:
    if condition is None:
        return None
    parts = _condition_parts(condition) if isinstance(condition, AllOf | AnyOf) else 1
    if parts > CONDITION_PARTS_MAX:
        raise InvalidWrite(
            f"a condition has at most {CONDITION_PARTS_MAX} parts, not {parts}",
            field="condition",
            size=parts,
            limit=CONDITION_PARTS_MAX,
        )
    return _canonical_condition(condition)


def _condition_parts(condition: Condition) -> int:
    # Without recursion: a condition nested a thousand deep must not exhaust the stack.
    parts, left = 0, [condition]
    while left and parts <= CONDITION_PARTS_MAX:
        part = left.pop()
        parts += 1
        if isinstance(part, AllOf | AnyOf):
            # A generator would be used up by counting, and leave a condition that always holds.
            if not isinstance(part.conditions, tuple | list):
                raise InvalidWrite("AllOf and AnyOf hold a tuple of conditions", field="condition")
            left.extend(part.conditions)
    return parts


def _canonical_condition(condition: Condition) -> Condition:
    match condition:
        case Absent(name) | Present(name):
            _validate_attribute_name(name)
            return condition
        case Equals(name, value):
            if _validate_attribute_name(name) is name and _is_plain(value):  # nearly all there are
                return condition
            return Equals(_validate_attribute_name(name), canonical_value(value, name))
        case Less(name, value):
            return Less(_validate_attribute_name(name), _validate_comparable(value, name))
        case Greater(name, value):
            return Greater(_validate_attribute_name(name), _validate_comparable(value, name))
        case AllOf(conditions) | AnyOf(conditions):
            if not conditions:
                raise InvalidWrite("AllOf and AnyOf hold at least one condition", field="condition")
            return type(condition)(tuple(map(_canonical_condition, conditions)))
        case _:
            raise InvalidWrite(f"{_shown(condition)} is not a condition", field="condition")


def _is_plain(value: Any) -> bool:  # its own canonical form, for certain
    return (type(value) is str and value.isascii()) or (type(value) is int and abs(value) < 2**53)


def _validate_comparable(value: Any, name: str) -> Any:
    if _is_plain(value):
        return value
    value = canonical_value(value, name)
    if comparable_type(value) is None:
        raise InvalidWrite(
            f"{name} can be less or greater than a string, a number or bytes, "
            f"not than {type(value).__name__}",
            field=name,
        )
    return value


def _validate_attribute_name(name: Any) -> str:
    if type(name) is str and 0 < len(name) < 256 and name.isascii():
        return name
    return canonical_name(name)


def _validate_key_text(value: Any, name: str, limit: int) -> str:
    if type(value) is str and 0 < len(value) <= limit and value.isascii():  # the ordinary case
        return value
    if not isinstance(value, str):
        raise InvalidKey(f"{name} is a string, not {type(value).__name__}", field=name)
    # Never a subclass, such as a StrEnum: what is stored and weighed is plain text.
    value = str.__str__(value)
    if 0 < len(value) <= limit and value.isascii():
        return value
    if not value:
        raise InvalidKey(f"{name} is empty", field=name)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"{name} holds a lone surrogate, which UTF-8 cannot express") from None
    if size > limit:
        raise InvalidKey(
            f"{name} has {size:,} bytes; the limit is {limit:,}",
            field=name,
            size=size,
            limit=limit,
        )
    return value


def _validate_token(token: Any) -> str:
    # ASCII, so that it has as many bytes as characters and no encoding can fail.
    if not isinstance(token, str) or not token.isascii() or not 0 < len(token) <= TOKEN_BYTES_MAX:
        raise InvalidWrite(
            f"a token is a string of 1 to {TOKEN_BYTES_MAX} bytes of ASCII, not {_shown(token)}",
            field="token",
            limit=TOKEN_BYTES_MAX,
        )
    return str.__str__(token)


def _shown(value: object) -> str:
    """Return a short form of what a caller handed in, whatever it is."""
    try:
        return f"{value!r:.80}"
    except Exception:
        return f"a {type(value).__name__}"


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
