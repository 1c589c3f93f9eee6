"""The items of a map, in the partition of the run that began it: the map, its lanes, its retries.

Every write of a lane names the step that it follows, so of two processes that decide what comes
next, one does. Writes leave the ``ttl`` alone: an extension of the run raises it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from holdfast.model.map import MapLane, MapSpec
from holdfast.records.codec import compress, encode, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head
from holdfast.records.keys import RunKey, map_key, map_lane_key, map_retry_key
from holdfast.storage import Absent, Equals, Put, Update

__all__ = [
    "MapRetry",
    "create_lane_write",
    "create_map_write",
    "free_map_write",
    "lane_of_item",
    "lane_write",
    "map_of_item",
    "new_round_write",
    "retry_of_item",
    "retry_result_write",
    "retry_write",
]

_VERSION = 1


class MapRetry(msgspec.Struct, frozen=True, kw_only=True):
    """The retries of one item of a map."""

    index: int
    attempt: int
    """The number of the last one, from 1."""
    run: str
    """The run of the last one."""
    status: str = "running"
    """``running``, ``finished`` or ``failed``."""


def create_map_write(head: Head, spec: MapSpec, *, token: str) -> Put:
    """Return the write that records a map. It comes before the lanes of the map."""
    key = map_key(head.key, head.generation, spec.map)
    item = {"PK": key.pk, "SK": key.sk, "ttl": head.ttl, "round": spec.round, **_packed(spec)}
    return Put(item, Absent("PK"), token)


def new_round_write(head: Head, spec: MapSpec, *, token: str) -> Update:
    """Return the write by which a map begins again; ``spec`` has the new round."""
    return Update(
        key=map_key(head.key, head.generation, spec.map),
        set={"round": spec.round, **_packed(spec)},
        condition=Equals("round", spec.round - 1),
        token=token,
    )


def free_map_write(run: RunKey, generation: str, spec: MapSpec, *, token: str) -> Update | None:
    """Return the write that frees what the items of a map were given; None if that is nothing.

    The rest of the item stays until its ttl: it keeps late writers from beginning the map again.
    """
    if not spec.given:
        return None
    return Update(
        key=map_key(run, generation, spec.map),
        set=_packed(msgspec.structs.replace(spec, given=b"")),
        condition=Equals("round", spec.round),
        token=token,
    )


def map_of_item(item: Mapping[str, Any]) -> MapSpec:
    """Return the map in an item.

    Raises:
        JournalDamaged: it is not the item of a map.
    """
    spec: MapSpec = _unpacked(item, MapSpec, "a map")
    return msgspec.structs.replace(spec, ttl=item["ttl"])


def create_lane_write(
    run: RunKey, generation: str, spec: MapSpec, lane: MapLane, *, token: str
) -> Put:
    """Return the write that records a lane that has just begun."""
    key = map_lane_key(run, generation, spec.map, lane.lane)
    item = {"PK": key.pk, "SK": key.sk, "ttl": spec.ttl, "step": lane.step, **_packed(lane)}
    return Put(item, Absent("PK"), token)


def lane_write(run: RunKey, generation: str, map: str, lane: MapLane, *, token: str) -> Update:
    """Return the write that changes a lane, if nothing has changed it since the step before."""
    return Update(
        key=map_lane_key(run, generation, map, lane.lane),
        set={"step": lane.step, **_packed(lane)},
        condition=Equals("step", lane.step - 1),
        token=token,
    )


def lane_of_item(item: Mapping[str, Any]) -> MapLane:
    """Return the lane in an item.

    Raises:
        JournalDamaged: it is not the item of a lane.
    """
    return _unpacked(item, MapLane, "a lane of a map")


def retry_write(run: RunKey, generation: str, spec: MapSpec, retry: MapRetry, *, token: str) -> Put:
    """Return the write by which the retry of an item begins, unless another one runs."""
    key = map_retry_key(run, generation, spec.map, retry.index)
    item = {"PK": key.pk, "SK": key.sk, "ttl": spec.ttl, "step": retry.attempt, **_packed(retry)}
    condition = Absent("PK") if retry.attempt == 1 else Equals("step", retry.attempt - 1)
    return Put(item, condition, token)


def retry_result_write(
    run: RunKey, generation: str, map: str, retry: MapRetry, *, token: str
) -> Update:
    """Return the write that records how the retry of an item ended."""
    return Update(
        key=map_retry_key(run, generation, map, retry.index),
        set=_packed(retry),
        condition=Equals("step", retry.attempt),
        token=token,
    )


def retry_of_item(item: Mapping[str, Any]) -> MapRetry:
    """Return the retries in an item.

    Raises:
        JournalDamaged: it is not the item of a retried item.
    """
    return _unpacked(item, MapRetry, "the retries of an item of a map")


def _packed(value: msgspec.Struct) -> dict[str, Any]:
    defaults = _defaults_of(type(value))
    fields = {
        name: field
        for name in value.__struct_fields__
        if name != "ttl" and (field := getattr(value, name)) != defaults.get(name, defaults)
    }
    return {"version": _VERSION, "data": compress(encode(fields))}


@cache
def _defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
    }


def _unpacked(item: Mapping[str, Any], kind: type[Any], what: str) -> Any:
    try:
        if typed_attribute(item, "version", int) > _VERSION:
            raise ValueError("a newer release wrote it")
        return msgspec.convert(unpack_value(typed_attribute(item, "data", bytes)), kind)
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, what, error) from error
