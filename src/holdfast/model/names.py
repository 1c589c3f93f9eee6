"""What ids, tenants and names may look like, so that they fit into keys, indexes and file names."""

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
"""The label that says which workers take a run."""
_LABEL_BYTES_MAX = 64

# "#" parts the fields of a key, "/" the segments of a blob's key; "~" and "%" grow in file names.
_FORBIDDEN_CHARS = re.compile(r"[#/\\~%\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def validated_name(name: object, field: str, *, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Return a name that can stand in a key.

    Raises:
        InvalidName: what is wrong with it.
    """
    if type(name) is not str:
        raise InvalidName(f"{field} is text, not {type(name).__name__}", field=field)
    if name.isascii() and name.isidentifier() and len(name) <= bytes_max:
        return name
    if unfit := _FORBIDDEN_CHARS.search(name):
        raise InvalidName(f"{field} {name!r:.80} has {unfit[0]!r}, which it may not", field=field)
    size = len(name.encode())
    if not 1 <= size <= bytes_max:
        raise InvalidName(
            f"{field} has from 1 to {bytes_max} bytes, not {size:,}",
            field=field,
            size=size,
            limit=bytes_max,
        )
    if name.startswith(".") or name != name.strip():
        raise InvalidName(
            f"{field} {name!r:.80} may not begin with a dot, nor begin or end with a space",
            field=field,
        )
    return name


def validated_tenant(tenant: object) -> str:
    """Return a tenant's name.

    Raises:
        InvalidName: what is wrong with it.
    """
    return validated_name(tenant, "tenant", bytes_max=TENANT_BYTES_MAX)


def validated_pool(pool: object) -> str:
    """Return a pool's name, which is the value of a label.

    Raises:
        InvalidName: what is wrong with it.
    """
    return validated_name(pool, POOL_LABEL, bytes_max=_LABEL_BYTES_MAX)


def validated_labels(
    labels: Mapping[str, str] | None, *, pool: str | None = None
) -> dict[str, str]:
    """Return labels that a list can show; a pool that is given beside them is one of them.

    Raises:
        InvalidName: too many, a name or a value that cannot be one, or two pools.
    """
    if labels is None:
        labels = {}
    if not isinstance(labels, Mapping):
        raise InvalidName(f"labels are a mapping, not {type(labels).__name__}", field="labels")
    if pool is not None:
        if labels.get(POOL_LABEL, pool) != validated_pool(pool):
            raise InvalidName(
                f"the pool is {pool!r:.64}, and the label {POOL_LABEL!r} says "
                f"{labels[POOL_LABEL]!r:.64}",
                field=POOL_LABEL,
            )
        labels = {**labels, POOL_LABEL: pool}
    if len(labels) > LABELS_MAX:
        raise InvalidName(
            f"a run has at most {LABELS_MAX} labels, not {len(labels)}",
            field="labels",
            size=len(labels),
            limit=LABELS_MAX,
        )
    return {
        validated_name(name, "a label's name", bytes_max=_LABEL_BYTES_MAX): validated_name(
            value, f"the label {name!r:.64}", bytes_max=_LABEL_BYTES_MAX
        )
        for name, value in labels.items()
    }
