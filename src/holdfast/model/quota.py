"""Quotas as users declare them, and the cost of one use."""

from __future__ import annotations

import math
from decimal import Decimal

import msgspec

from holdfast.errors import InvalidRequest, QuotaTooSmall
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.names import validated_name
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, Spending, is_amount

__all__ = ["ONE_REQUEST", "Cost", "Quota", "validated_tool_quota"]

_LIMIT_MAX = 10**15
_USD_MAX = _LIMIT_MAX // NANODOLLARS_PER_DOLLAR
_CONCURRENCY_MAX = 1_000
_WINDOW_US_MIN = 1_000_000
_WINDOW_US_MAX = 31 * 24 * 3600 * 1_000_000

# How late after its granted time a caller may start: long enough for a busy process to wake up,
# short enough to leave most of the window usable.
_GRACE_SHARE = 0.02
_GRACE_US_MAX = 500_000
# Allowance for what the caller cannot control: the network, clocks that differ, a stall right at
# the start.
_ALLOWANCE_SHARE = 0.05
_ALLOWANCE_US_MAX = 2_000_000
# A process that keeps starting late may ask for the length of a window more, or for this much if
# the window is shorter.
_SLACK_US_MAX_MIN = 2_000_000
# The share of a limit on requests that is left after grace, allowance and bursts.
_USED_SHARE_MIN = 0.935


class Cost(msgspec.Struct, frozen=True):
    """What one use of a quota takes."""

    requests: int = 1
    tokens: int = 0
    nanodollars: int = 0

    def __post_init__(self) -> None:
        for field in ("requests", "tokens", "nanodollars"):
            value = getattr(self, field)
            if type(value) is not int or not 0 <= value <= _LIMIT_MAX:
                raise InvalidRequest(
                    f"{field} of a cost must be an integer from 0 to {_LIMIT_MAX:,}, "
                    f"got {value!r:.80}",
                    field=field,
                )


ONE_REQUEST = Cost()


class _Named(msgspec.Struct, frozen=True):
    name: str
    """All quotas with this name share their limits."""


class Quota(_Named, frozen=True, kw_only=True):
    """Limits how much of an external service all workers together use.

    No window of length ``per`` has more ``requests``, ``tokens`` or ``usd``. At most
    ``concurrency`` calls run at a time. With ``per_tenant`` each tenant has its own limits.
    """

    requests: int | None = None
    tokens: int | None = None
    usd: float | Decimal | None = None
    per: Duration = 1
    concurrency: int | None = None
    per_tenant: bool = False

    def __post_init__(self) -> None:
        validated_name(self.name, "name")
        _check_int("requests", self.requests, _LIMIT_MAX)
        _check_int("tokens", self.tokens, _LIMIT_MAX)
        _check_int("concurrency", self.concurrency, _CONCURRENCY_MAX)
        if self.usd is not None and not (is_amount(self.usd, _USD_MAX) and self.nanodollars):
            raise InvalidRequest(
                "usd of a quota must be an int, float or Decimal of more than 0 up to "
                f"{_USD_MAX:,}, got {self.usd!r:.80}",
                field="usd",
            )
        window_us = milliseconds_of(self.per, "per") * 1000
        if not _WINDOW_US_MIN <= window_us <= _WINDOW_US_MAX:
            raise InvalidRequest(
                f"per must be from 1 second to 31 days, got {self.per!r:.80}", field="per"
            )
        if type(self.per_tenant) is not bool:
            raise InvalidRequest(
                f"per_tenant must be True or False, got {self.per_tenant!r:.80}", field="per_tenant"
            )
        limits = (self.requests, self.tokens, self.usd, self.concurrency)
        if all(limit is None for limit in limits):
            raise InvalidRequest(
                f"quota {self.name!r:.80} must limit something: pass requests, tokens, usd or "
                "concurrency",
                field="requests",
            )

    @property
    def nanodollars(self) -> int | None:
        """The exact limit on money."""
        return None if self.usd is None else round(self.usd * NANODOLLARS_PER_DOLLAR)

    @property
    def window_us(self) -> int:
        return milliseconds_of(self.per, "per") * 1000

    @property
    def grace_us(self) -> int:
        """How late after its granted time a caller may start."""
        return min(round(self.window_us * _GRACE_SHARE), _GRACE_US_MAX)

    @property
    def slack_us_max(self) -> int:
        """How much time beyond the grace a caller that keeps starting late may ask for."""
        return max(self.window_us, _SLACK_US_MAX_MIN)

    @property
    def span_us(self) -> int:
        """The internal length of a window: grants this far apart never arrive in one window.

        A request arrives at its granted time, or later by at most the grace and the allowance. So
        two arrivals are closer to each other than their granted times by at most these two.
        """
        allowance = min(round(self.window_us * _ALLOWANCE_SHARE), _ALLOWANCE_US_MAX)
        return self.window_us + self.grace_us + allowance

    @property
    def burst(self) -> int:
        """How many requests may start at once after an idle time.

        A larger burst needs a slower pace. Grace and allowance leave little room for that in a
        short window, and more in a long one.
        """
        if self.requests is None:
            return 1
        paced = _USED_SHARE_MIN * self.requests * self.span_us / self.window_us
        return max(1, math.floor(self.requests + 1 - paced))

    def pace_us(self, requests: int, slack_us: int = 0) -> int:
        """Return the time that this many requests take at full load.

        ``slack_us`` is the time beyond the grace by which some of them may be late.
        """
        assert self.requests is not None
        return -(-requests * (self.span_us + slack_us) // (self.requests - self.burst + 1))

    def check_cost(self, cost: Cost) -> None:
        """Check that the quota can ever grant a cost.

        Raises:
            QuotaTooSmall: the cost is more than the quota allows in a whole window.
        """
        for field in ("requests", "tokens", "nanodollars"):
            limit, asked = getattr(self, field), getattr(cost, field)
            if limit is None or asked <= limit:
                continue
            if field == "nanodollars":
                field, asked, limit = "usd", Spending(0, asked).usd, Spending(0, limit).usd
            raise QuotaTooSmall(
                f"a call needs {asked:,} {field}, but the quota {self.name!r:.80} allows "
                f"{limit:,} in a whole window: it can never be granted",
                field=field,
                size=asked,
                limit=limit,
            )


def validated_tool_quota(quota: object) -> Quota | None:
    """Return the quota of a tool; None if it has none.

    Raises:
        InvalidRequest: the value is not a Quota, or limits only tokens and usd.
    """
    if not isinstance(quota, Quota | None):
        raise InvalidRequest(
            f"quota must be a Quota, such as Quota('mail', requests=5), got {quota!r:.80}",
            field="quota",
        )
    if quota is not None and quota.requests is None and quota.concurrency is None:
        raise InvalidRequest(
            f"quota {quota.name!r:.80} of a tool must limit requests or concurrency: calls of "
            "tools use neither tokens nor money",
            field="quota",
        )
    return quota


def _check_int(field: str, value: int | None, max_value: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= max_value):
        raise InvalidRequest(
            f"{field} of a quota must be an integer from 1 to {max_value:,}, got {value!r:.80}",
            field=field,
        )
