"""The errors with which a store refuses a write, in the same words on every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import ConditionFailed, ItemTooLarge, TransactionCancelled
from holdfast.storage.item import ITEM_BYTES_MAX, Item
from holdfast.storage.layout import Key
from holdfast.storage.writes import TransactionWrite

__all__ = ["condition_failed_error", "transaction_cancelled_error", "update_too_large_error"]


def condition_failed_error(key: Key, existing: Item | None) -> ConditionFailed:
    """Return the error for a write whose condition did not hold."""
    found = "there is no item" if existing is None else "see .item for the existing item"
    return ConditionFailed(f"the condition on {key} does not hold; {found}", item=existing)


def transaction_cancelled_error(
    writes: Sequence[TransactionWrite], failed: Mapping[int, Item | None]
) -> TransactionCancelled:
    """Return the error for a transaction that a condition cancelled.

    ``failed`` maps the position of each write whose condition failed to the existing item.
    """
    keys = ", ".join(str(writes[position].key) for position in failed)
    items = {position: item for position, item in failed.items() if item is not None}
    return TransactionCancelled(
        f"the condition on {keys} does not hold", failed=tuple(failed), items=items
    )


def update_too_large_error(where: object, size: int | None = None) -> ItemTooLarge:
    """Return the error for an update that would make an item too large.

    ``size`` is None on DynamoDB, which does not report it.
    """
    got = "" if size is None else f", got {size:,}"
    return ItemTooLarge(
        f"{where}: the updated item must have at most {ITEM_BYTES_MAX:,} bytes (400 KB){got}",
        size=size,
        limit=ITEM_BYTES_MAX,
    )
