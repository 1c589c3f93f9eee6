"""The names of people who are asked to review something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.errors import InvalidRequest

__all__ = ["EVERYONE", "validated_people", "validated_person", "validated_quorum"]

EVERYONE = "*"
"""Stands for the assignee of a review that every reviewer may decide."""
_PEOPLE_MAX = 50
_NAME_CHARS_MAX = 200
_QUORUM_MAX = 20


def validated_people(people: object, field: str) -> tuple[str, ...]:
    """Return the names of people, each once.

    Raises:
        InvalidRequest: they are not names, one contains a comma, or they are too many.
    """
    listed: list[Any] = [people] if isinstance(people, str) else _listed(people, field)
    names: dict[str, str] = {}
    for each in listed:
        name = validated_person(each, field)
        if "," in name:
            raise InvalidRequest(
                f"{field} must not contain names with a comma, got {name!r:.80}: pass several "
                "people as a list of names",
                field=field,
            )
        names.setdefault(name.casefold(), name)
    if len(names) > _PEOPLE_MAX:
        raise InvalidRequest(
            f"{field} must contain at most {_PEOPLE_MAX} people, got {len(names)}", field=field
        )
    return tuple(names.values())


def validated_person(name: object, field: str) -> str:
    """Return the name of a person, without spaces around it.

    Raises:
        InvalidRequest: it is not a name.
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name.strip()) <= _NAME_CHARS_MAX
        or name.strip() == EVERYONE
        or not name.isprintable()
    ):
        raise InvalidRequest(
            f"{field} must be a name of 1 to {_NAME_CHARS_MAX} printable characters, "
            f"got {name!r:.80}",
            field=field,
        )
    return name.strip()


def _listed(people: object, field: str) -> list[Any]:
    if not isinstance(people, Sequence | set | frozenset) or isinstance(people, bytes | bytearray):
        raise InvalidRequest(
            f"{field} must be a name or a list of names, got {people!r:.80}", field=field
        )
    return list(cast(Sequence[Any], people))


def validated_quorum(quorum: object, assignees: Sequence[str]) -> int:
    """Return how many votes decide a review.

    Raises:
        InvalidRequest: it is no such number, or larger than the number of assignees.
    """
    if type(quorum) is not int or not 1 <= quorum <= _QUORUM_MAX:
        raise InvalidRequest(
            f"quorum must be an integer from 1 to {_QUORUM_MAX}, got {quorum!r:.80}", field="quorum"
        )
    if assignees and quorum > len(assignees):
        raise InvalidRequest(
            f"quorum must be at most the number of assignees, {len(assignees)}, got {quorum}",
            field="quorum",
        )
    return quorum
