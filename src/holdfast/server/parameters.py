"""Parameters and bodies that several routes have."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import Scope
from msgspec import Meta

from holdfast.errors import InvalidRequest
from holdfast.model.budget import Budget
from holdfast.model.run import OnBusy, Status

__all__ = [
    "BudgetBody",
    "Cursor",
    "DurationBody",
    "FilterBody",
    "IdempotencyKey",
    "Limit",
    "MomentText",
    "NameText",
    "Prefer",
    "RunId",
    "StartBody",
    "address",
    "key_digest",
    "paged",
]

T = TypeVar("T")

RunId = Annotated[str, PathParameter(description="The run's id.", min_length=1, max_length=128)]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many, at most.")]
Cursor = Annotated[
    str | None,
    QueryParameter(
        max_length=1024, description="The cursor of the last page, to read the next one."
    ),
]
IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="A name for this request: repeated with the same name, it counts once.",
    ),
]

Prefer = Annotated[
    str | None,
    HeaderParameter(
        name="Prefer",
        max_length=255,
        description="wait=30 waits up to 30 seconds, and at most 60, for the end of the run.",
    ),
]

NameText = Annotated[str, Meta(min_length=1, max_length=128)]
MomentText = Annotated[
    str,
    Meta(
        max_length=64,
        description="A time in ISO 8601 with a time zone, such as 2026-11-01T09:30:00Z.",
        extra_json_schema={"format": "date-time"},
    ),
]
DurationBody = Annotated[
    float | Annotated[str, Meta(min_length=1, max_length=64)],
    Meta(description="Seconds, or text such as 500ms, 90s, 1h30m or 7d."),
]
_Label = Annotated[str, Meta(min_length=1, max_length=64)]
_Labels = Annotated[dict[_Label, _Label], Meta(max_length=10)]


class BudgetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a run may spend in all; at least one limit is needed."""

    tokens: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    usd: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    node_time: DurationBody | None = None
    wall: DurationBody | None = None
    estimate: bool = False

    def budget(self) -> Budget:
        """Return the budget.

        Raises:
            InvalidRequest: it limits nothing, or a limit is not an amount.
        """
        return Budget(
            tokens=self.tokens,
            usd=self.usd,
            node_time=self.node_time,
            wall=self.wall,
            estimate=self.estimate,
        )


class FilterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which runs: those that meet all conditions given."""

    status: Status | Annotated[list[Status], Meta(min_length=1, max_length=10)] | None = None
    graph: Annotated[str, Meta(max_length=128)] | None = None
    labels: _Labels | None = None
    since: MomentText | None = None
    until: MomentText | None = None
    reason: Annotated[str, Meta(max_length=64)] | None = None
    node: Annotated[str, Meta(max_length=1024)] | None = None
    updated_since: MomentText | None = None
    updated_until: MomentText | None = None
    cost_usd_min: Annotated[float, Meta(ge=0)] | None = None
    cost_usd_max: Annotated[float, Meta(ge=0)] | None = None


class StartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run to start."""

    graph: NameText
    input: Any = None
    id: NameText | None = None
    labels: _Labels | None = None
    pool: _Label | None = None
    user: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    session: NameText | None = None
    on_busy: OnBusy | None = None
    start_at: MomentText | None = None
    expires: DurationBody | None = None
    retention: DurationBody = 0.0
    budget: BudgetBody | None = None


def key_digest(key: str | None, given: str | None, *, field: str, bound_to: str) -> str | None:
    """Return the id that an Idempotency-Key stands for, or the id that was given.

    The key is not the id itself: it may have characters that no id may have.

    Raises:
        InvalidRequest: both are given.
    """
    if key is None:
        return given
    if given is not None:
        raise InvalidRequest(
            f"pass either {field} or the header Idempotency-Key, not both", field=field
        )
    digest = hashlib.blake2b(f"{bound_to}\0{key}".encode(), digest_size=16)
    return f"key-{digest.hexdigest()}"


def address(scope: Scope, *parts: str) -> str:
    """Return the path of something on this server, also where the server is mounted."""
    path = "/".join(quote(part, safe="") for part in parts)
    return f"{scope['root_path'].rstrip('/')}/v1/{path}"


def paged(
    found: Sequence[T], position: Callable[[T], str], *, limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return a page of a list that was read whole, and the cursor of the next page.

    The cursor is the position of the last item of a page. Positions are in ascending order.
    """
    if cursor is not None:
        found = [item for item in found if position(item) > cursor]
    page = list(found[:limit])
    return page, position(page[-1]) if len(found) > limit else None
