"""API keys as callers see them: who a key stands for, and how long it is valid."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias, get_args

from holdfast.errors import InvalidRequest
from holdfast.model.json_form import JsonForm

__all__ = ["ANY_TENANT", "KEY_ROLES", "ApiKey", "KeyRole", "NewKey", "validated_role"]

KeyRole: TypeAlias = Literal["viewer", "reviewer", "operator", "admin"]
"""What a caller may do. Each role may do what the ones before it may."""

KEY_ROLES: tuple[KeyRole, ...] = get_args(KeyRole)

ANY_TENANT = "*"
"""The tenant of a key that may act on the runs of every tenant."""


class ApiKey(JsonForm, frozen=True, kw_only=True):
    """An API key without its secret."""

    id: str
    name: str
    tenant: str
    """The tenant that it acts on; ``*`` is every tenant."""
    role: KeyRole
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """When it was used, to about an hour."""


class NewKey(ApiKey, frozen=True, kw_only=True):
    """An API key that was just created, with its secret, which is shown only here."""

    secret: str
    """The whole key, as a request sends it."""

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r}, name={self.name!r}, tenant={self.tenant!r})"


def validated_role(role: object) -> KeyRole:
    """Return the role of a key.

    Raises:
        InvalidRequest: there is no such role.
    """
    for known in KEY_ROLES:
        if role == known:
            return known
    raise InvalidRequest(
        f"role must be one of {', '.join(KEY_ROLES)}, got {role!r:.80}", field="role"
    )
