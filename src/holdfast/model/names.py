"""Validates ids, tenants, names and labels, so that they fit into keys and file names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.errors import InvalidName

__all__ = [
    "LABELS_MAX",
    "NAME_BYTES_MAX",
    "POOL_LABEL",
    "TENANT_BYTES_MAX",
    "validated_labels",
    "validated_name",
    "validated_pool",
    "validated_tenant",
]

NAME_BYTES_MAX = 128
TENANT_BYTES_MAX = 64
LABELS_MAX = 10
POOL_LABEL = "pool"
"""The label that names the pool of workers for a run."""
_LABEL_BYTES_MAX = 64

# "#" separates fields of keys, "/" segments of blob keys; "~" and "%" are escaped in file names.
_FORBIDDEN_CHARS = re.compile(r"[#/\\~%\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def validated_name(name: object, field: str, *, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Return a name that is valid in a key.

    Raises:
        InvalidName: the name is not a string, is too long or empty, or has invalid characters.
    """
    if type(name) is not str:
        raise InvalidName(f"{field} must be a string, got {type(name).__name__}", field=field)
    if name.isascii() and name.isidentifier() and len(name) <= bytes_max:
        return name
    if unfit := _FORBIDDEN_CHARS.search(name):
        raise InvalidName(f"{field} must not contain {unfit[0]!r}, got {name!r:.80}", field=field)
    size = len(name.encode())
    if not 1 <= size <= bytes_max:
        raise InvalidName(
            f"{field} must have from 1 to {bytes_max} bytes, got {size:,}",
            field=field,
            size=size,
            limit=bytes_max,
        )
    if name.startswith(".") or name != name.strip():
        raise InvalidName(
            f"{field} must not start with a dot, or start or end with a space, got {name!r:.80}",
            field=field,
        )
    return name


def validated_tenant(tenant: object) -> str:
    """Return the name of a tenant.

    Raises:
        InvalidName: the name is invalid.
    """
    return validated_name(tenant, "tenant", bytes_max=TENANT_BYTES_MAX)


def validated_pool(pool: object) -> str:
    """Return the name of a pool, which is the value of a label.

    Raises:
        InvalidName: the name is invalid.
    """
    return validated_name(pool, POOL_LABEL, bytes_max=_LABEL_BYTES_MAX)


def validated_labels(
    labels: Mapping[str, str] | None, *, pool: str | None = None
) -> dict[str, str]:
    """Return valid labels. A ``pool`` becomes one of them.

    Raises:
        InvalidName: there are too many labels, a name or value is invalid, or two pools differ.
    """
    if labels is None:
        labels = {}
    if not isinstance(labels, Mapping):
        raise InvalidName(f"labels must be a dict, got {type(labels).__name__}", field="labels")
    if pool is not None:
        if labels.get(POOL_LABEL, pool) != validated_pool(pool):
            raise InvalidName(
                f"pool and the label {POOL_LABEL!r} must be the same, got {pool!r:.64} and "
                f"{labels[POOL_LABEL]!r:.64}",
                field=POOL_LABEL,
            )
        labels = {**labels, POOL_LABEL: pool}
    if len(labels) > LABELS_MAX:
        raise InvalidName(
            f"labels must have at most {LABELS_MAX} entries, got {len(labels)}",
            field="labels",
            size=len(labels),
            limit=LABELS_MAX,
        )
    return {
        validated_name(name, "the name of a label", bytes_max=_LABEL_BYTES_MAX): validated_name(
            value, f"the label {name!r:.64}", bytes_max=_LABEL_BYTES_MAX
        )
        for name, value in labels.items()
    }
