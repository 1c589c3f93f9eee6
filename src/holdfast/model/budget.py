"""The budget of a run: how much it may spend, and whether a call still fits."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration, duration_text, milliseconds_of
from holdfast.model.json_form import JsonForm
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, Spending, is_amount

__all__ = ["Budget", "BudgetLimits", "check_limits"]

_TOKENS_MAX = 10**15
_USD_MAX = 10**9
_LIMIT_MAX = _USD_MAX * NANODOLLARS_PER_DOLLAR
_NANODOLLAR = Decimal("1E-9")
# The largest budget has 19 digits in nanodollars.
_EXACT = Context(prec=28)


class BudgetLimits(JsonForm, frozen=True):
    """The budget of a run in whole units; None means no limit."""

    tokens: int | None = None
    nanodollars: int | None = None
    """The exact limit on money; see `usd`."""
    node_time_ms: int | None = None
    """The limit on the time inside nodes."""
    estimate: bool = False
    """Whether a call that does not fit by its upper bound may be reserved by a learned estimate."""
    wall_ms: int | None = None
    """The limit on the time since the start of the run, pauses included."""

    @property
    def usd(self) -> float | None:
        """The limit in dollars, for display."""
        return None if self.nanodollars is None else self.nanodollars / NANODOLLARS_PER_DOLLAR

    @property
    def limits_time(self) -> bool:
        """Whether the budget limits the time of the run."""
        return self.node_time_ms is not None or self.wall_ms is not None

    def time_shortfall(self, *, node_time_ms: int, wall_ms: int) -> str | None:
        """Return by how much the run exceeds a limit on its time; None if it does not."""
        if self.node_time_ms is not None and node_time_ms >= self.node_time_ms:
            used = _rounded_text(node_time_ms)
            return f"more than {duration_text(self.node_time_ms)} inside nodes, and used {used}"
        if self.wall_ms is not None and wall_ms >= self.wall_ms:
            ago = _rounded_text(wall_ms)
            return f"more than {duration_text(self.wall_ms)} of wall time, and started {ago} ago"
        return None

    def shortfall(self, spent: Spending, need: Spending) -> str | None:
        """Return what is needed and what is left, in words; None if the rest is enough."""
        after = spent + need
        if self.tokens is not None and need.tokens and after.tokens > self.tokens:
            return f"{need.tokens:,} tokens, and {max(self.tokens - spent.tokens, 0):,} are left"
        money = self.nanodollars
        if money is not None and need.nanodollars and after.nanodollars > money:
            left = Spending(nanodollars=max(money - spent.nanodollars, 0))
            return f"${need.usd:.6f}, and ${left.usd:.6f} are left"
        return None

    def is_within(self, other: BudgetLimits) -> bool:
        """Return whether it allows no more tokens, dollars and estimates than the other one."""
        return (
            _is_within(self.tokens, other.tokens)
            and _is_within(self.nanodollars, other.nanodollars)
            and (other.estimate or not self.estimate)
        )


def _is_within(limit: int | None, other: int | None) -> bool:
    return other is None or (limit is not None and limit <= other)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much a run may spend in all: tokens, dollars and time.

    The run pauses before a call that might cost more than is left, and before a node or a call if
    no time is left. ``node_time`` is the time inside its nodes. ``wall`` is the time since it was
    started, pauses included. With ``estimate=True``, a call
    that does not fit by its upper bound is reserved by a learned estimate of its input. Then the
    run may overshoot by the underestimated input of its calls in flight.

    Raises:
        InvalidRequest: it limits nothing, one of the limits is not an amount, or ``estimate`` is
            not a bool.
    """

    tokens: int | None = None
    usd: float | Decimal | None = None
    """An amount in dollars; a Decimal is converted exactly, down to the nanodollar."""
    node_time: Duration | None = None
    wall: Duration | None = None
    estimate: bool = False

    def __post_init__(self) -> None:
        if (self.tokens, self.usd, self.node_time, self.wall) == (None,) * 4:
            raise InvalidRequest(
                "a budget must limit tokens, usd, node_time or wall", field="budget"
            )
        if self.tokens is not None and not (
            type(self.tokens) is int and 0 <= self.tokens <= _TOKENS_MAX
        ):
            raise InvalidRequest(
                f"tokens must be an integer from 0 to {_TOKENS_MAX:,}, got {self.tokens!r:.80}",
                field="tokens",
            )
        if self.usd is not None and not is_amount(self.usd, _USD_MAX):
            raise InvalidRequest(
                f"usd must be an int, float or Decimal from 0 to {_USD_MAX:,}, "
                f"got {self.usd!r:.80}",
                field="usd",
            )
        _ms_or_none(self.node_time, "node_time")
        _ms_or_none(self.wall, "wall")
        if type(self.estimate) is not bool:
            raise InvalidRequest(
                f"estimate must be True or False, got {self.estimate!r:.80}", field="estimate"
            )

    @property
    def limits(self) -> BudgetLimits:
        """The budget in whole units; a fraction of a nanodollar is rounded down."""
        return BudgetLimits(
            self.tokens,
            None if self.usd is None else _nanodollars(self.usd),
            _ms_or_none(self.node_time, "node_time"),
            self.estimate,
            _ms_or_none(self.wall, "wall"),
        )


def check_limits(limits: BudgetLimits) -> None:
    """Check limits that did not come from a `Budget` of this process.

    Raises:
        InvalidRequest: one of them is not a limit that a run can have, or they limit nothing.
    """
    for field in ("nanodollars", "node_time_ms", "wall_ms"):
        value: object = getattr(limits, field)
        if value is not None and not (type(value) is int and 0 <= value <= _LIMIT_MAX):
            raise InvalidRequest(
                f"{field} must be an integer from 0 to {_LIMIT_MAX:,}, got {value!r:.80}",
                field=field,
            )
    shown = limits.as_dict()
    Budget(
        tokens=limits.tokens,
        usd=limits.usd,
        node_time=shown["node_time_seconds"],
        wall=shown["wall_seconds"],
        estimate=limits.estimate,
    )


def _ms_or_none(duration: Duration | None, field: str) -> int | None:
    return None if duration is None else milliseconds_of(duration, field)


def _rounded_text(span_ms: int) -> str:
    """Return a duration as text, in whole seconds if it is longer than one."""
    return duration_text(span_ms - span_ms % 1000 or span_ms)


def _nanodollars(usd: float | Decimal) -> int:
    if isinstance(usd, Decimal):
        exact = usd.quantize(_NANODOLLAR, rounding=ROUND_FLOOR, context=_EXACT)
        return int(exact.scaleb(9, context=_EXACT))
    return math.floor(round(usd * NANODOLLARS_PER_DOLLAR, 3))
