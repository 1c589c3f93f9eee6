"""The list of ambiguous calls: calls with an unknown outcome that a person has to resolve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.run import AmbiguousCall
from holdfast.records.head import Head
from holdfast.records.index_keys import call_index_key, calls_partition, listed_ms
from holdfast.records.keys import RunKey, call_key
from holdfast.records.times import utc_datetime
from holdfast.storage import Delete, Put
from holdfast.storage.item import item_bytes
from holdfast.storage.units import WRITE_UNIT_BYTES

__all__ = ["ambiguous_call_of", "list_call_write", "unlist_call_write"]

# With the attribute's name and the token of the write, an entry costs one unit up to this size.
_WITH_ARGUMENTS_BYTES_MAX = WRITE_UNIT_BYTES - 64


def list_call_write(
    head: Head,
    *,
    id: str,
    node: str,
    name: str,
    key: str,
    arguments: bytes | None,
    now_ms: int,
    token: str,
) -> Put:
    """Return the write that adds a call to the list.

    ``arguments`` are encoded. They are left out where the entry would cost more with them.
    """
    place = call_key(head.key, head.generation, id)
    item: dict[str, Any] = {
        "PK": place.pk,
        "SK": place.sk,
        "GSI2PK": calls_partition(head.key.tenant),
        "GSI2SK": call_index_key(now_ms, head.key.id, id),
        "ttl": head.ttl,
        "show": {"graph": head.graph, "node": node, "name": name, "key": key},
    }
    if arguments is not None and item_bytes(item) + len(arguments) <= _WITH_ARGUMENTS_BYTES_MAX:
        item["show"]["arguments"] = arguments
    return Put(item, None, token)


def unlist_call_write(head: Head, id: str) -> Delete:
    """Return the write that removes a call from the list."""
    return Delete(call_key(head.key, head.generation, id))


def ambiguous_call_of(item: Mapping[str, Any]) -> AmbiguousCall:
    """Return the call in an entry of the list.

    Raises:
        JournalDamaged: the item is not an entry of a call.
    """
    try:
        run = RunKey.parsed(item["PK"])
        known = {
            "run": run.id,
            "tenant": run.tenant,
            "call": item["SK"].rpartition("#")[2],
            "since": utc_datetime(listed_ms(item["GSI2SK"])),
        }
        shown: dict[str, Any] = {**item["show"], **known}
        if "arguments" in shown:
            shown["arguments"] = msgspec.msgpack.decode(shown["arguments"])
        return msgspec.convert(shown, AmbiguousCall)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise JournalDamaged(
            f"the entry of an ambiguous call cannot be read: {error!r:.300}"
        ) from error
