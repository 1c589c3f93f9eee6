"""Reads what a server answered into the types of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from holdfast.errors import InvalidRequest, InvalidResponse
from holdfast.model.json_form import JsonForm

__all__ = ["member_of", "page_of", "read"]

F = TypeVar("F", bound=JsonForm)


def read(kind: type[F], shown: object) -> F:
    """Return an answer in its type.

    Raises:
        InvalidResponse: the answer has another form.
    """
    try:
        return kind.from_dict(cast(Mapping[str, Any], shown))
    except InvalidRequest as error:
        raise InvalidResponse(f"the server's answer cannot be read: {error}") from None


def member_of(shown: object, name: str) -> Any:
    """Return a member of an answer.

    Raises:
        InvalidResponse: the answer does not have it.
    """
    if not isinstance(shown, dict) or name not in shown:
        raise InvalidResponse(f"the server's answer cannot be read: it has no member {name!r}")
    return cast(dict[str, Any], shown)[name]


def page_of(kind: type[F], shown: object, name: str) -> tuple[list[F], str | None]:
    """Return the items of a page in their type, and the cursor of the next page.

    Raises:
        InvalidResponse: the answer is not such a page.
    """
    items: object = member_of(shown, name)
    cursor = cast(dict[str, Any], shown).get("cursor")
    if not isinstance(items, list) or not isinstance(cursor, str | None):
        raise InvalidResponse(f"the server's answer cannot be read: {name!r} is not a list")
    return [read(kind, each) for each in cast(list[object], items)], cursor
