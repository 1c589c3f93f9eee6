"""States of every kind, with the same fields."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


class Color(enum.Enum):
    RED = "red"


class Line(msgspec.Struct):
    price: decimal.Decimal
    count: int = 1


class Keyed(TypedDict):
    id: int
    note: NotRequired[str]
    due: NotRequired[datetime.datetime]
    price: NotRequired[decimal.Decimal]
    key: NotRequired[uuid.UUID]
    tags: NotRequired[set[str]]
    raw: NotRequired[bytes]
    color: NotRequired[Color]
    lines: NotRequired[list[Line]]
    share: NotRequired[float]
    free: NotRequired[Any]
    maybe: NotRequired[int | None]


class Struct(msgspec.Struct):
    id: int
    due: datetime.datetime | None = None
    tags: set[str] = msgspec.field(default_factory=set[str])
    lines: list[Line] = msgspec.field(default_factory=list[Line])
    free: Any = None


@dataclass
class Data:
    id: int
    due: datetime.datetime | None = None
    tags: set[str] = field(default_factory=set[str])
    lines: list[Line] = field(default_factory=list[Line])
    free: Any = None


class PydanticLine(pydantic.BaseModel):
    price: decimal.Decimal
    count: int = 1


class Model(pydantic.BaseModel):
    id: int
    due: datetime.datetime | None = None
    tags: set[str] = set()
    lines: list[PydanticLine] = []
    free: Any = None


class StrictModel(Model):
    model_config = pydantic.ConfigDict(strict=True)


CLASSES = [Struct, Data, Model]
EVERY = [Keyed, *CLASSES]


def packed(value: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
