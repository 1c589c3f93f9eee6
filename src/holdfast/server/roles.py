"""The roles of callers, from the weakest to the strongest."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["ROLES", "Role", "includes"]

Role: TypeAlias = Literal["public", "viewer", "reviewer", "operator", "admin"]
"""What a route needs. A role may do what the weaker ones may; ``public`` needs no credentials."""

ROLES: tuple[Role, ...] = get_args(Role)


def includes(held: Role, needed: Role) -> bool:
    """Return whether a caller with the role ``held`` may do what needs the other role."""
    return ROLES.index(held) >= ROLES.index(needed)
