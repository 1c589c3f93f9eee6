"""Quotas as their users declare them, and what one use of them costs."""

from __future__ import annotations

import math

import msgspec

from holdfast.errors import InvalidRequest, QuotaTooSmall
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.names import validated_name
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR

__all__ = ["ONE_REQUEST", "Cost", "Quota", "nanodollars_of", "validated_tool_quota"]

_LIMIT_MAX = 10**15
_CONCURRENCY_MAX = 1_000
_WINDOW_US_MIN = 1_000_000
_WINDOW_US_MAX = 31 * 24 * 3600 * 1_000_000

# How late a caller may begin, after the moment that it was given: long enough for a busy process to
# wake up, short enough to leave most of the window to be used.
_GRACE_SHARE = 0.02
_GRACE_US_MAX = 500_000
# What is not in our hands: the way to the callee, clocks that differ, a process that stalls just
# when it begins.
_ALLOWANCE_SHARE = 0.05
_ALLOWANCE_US_MAX = 2_000_000
# A process that keeps missing its moments may ask for as much as a window more, and for this much
# where a window is shorter: slower ones exist.
_SLACK_US_MAX_MIN = 2_000_000
# What is to be left of a limit on requests once grace, allowance and bursts are paid for.
_USED_SHARE_MIN = 0.935


class Cost(msgspec.Struct, frozen=True):
    """What one use of a quota takes, or took."""

    requests: int = 1
    tokens: int = 0
    nanodollars: int = 0

    def __post_init__(self) -> None:
        for field in ("requests", "tokens", "nanodollars"):
            value = getattr(self, field)
            if type(value) is not int or not 0 <= value <= _LIMIT_MAX:
                raise InvalidRequest(
                    f"a cost's {field} are a whole number from 0 to {_LIMIT_MAX:,}, "
                    f"not {value!r:.80}",
                    field=field,
                )


ONE_REQUEST = Cost()


class _Named(msgspec.Struct, frozen=True):
    name: str
    """Whoever declares a quota of this name shares it."""


class Quota(_Named, frozen=True, kw_only=True):
    """How much of something outside all workers together may use.

    In no window of the length ``per`` are more ``requests``, ``tokens`` or ``dollars`` used, and
    never more than ``concurrency`` calls are under way. With ``per_tenant`` each tenant has it for
    itself.
    """

    requests: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    per: Duration = 1
    concurrency: int | None = None
    per_tenant: bool = False

    def __post_init__(self) -> None:
        validated_name(self.name, "name")
        _check_int("requests", self.requests, _LIMIT_MAX)
        _check_int("tokens", self.tokens, _LIMIT_MAX)
        _check_int("concurrency", self.concurrency, _CONCURRENCY_MAX)
        if self.dollars is not None and nanodollars_of(self.dollars, "dollars") < 1:
            raise InvalidRequest("a quota of no dollars lets nothing pass", field="dollars")
        window_us = milliseconds_of(self.per, "per") * 1000
        if not _WINDOW_US_MIN <= window_us <= _WINDOW_US_MAX:
            raise InvalidRequest(
                f"per is from 1 second to 31 days, not {self.per!r:.80}", field="per"
            )
        if type(self.per_tenant) is not bool:
            raise InvalidRequest(
                f"per_tenant is True or False, not {self.per_tenant!r:.80}", field="per_tenant"
            )
        limits = (self.requests, self.tokens, self.dollars, self.concurrency)
        if all(limit is None for limit in limits):
            raise InvalidRequest(
                f"the quota {self.name!r:.80} limits nothing: give it requests, tokens, dollars "
                "or concurrency",
                field="requests",
            )

    @property
    def nanodollars(self) -> int | None:
        """The limit on dollars, in whole nanodollars."""
        return None if self.dollars is None else nanodollars_of(self.dollars, "dollars")

    @property
    def window_us(self) -> int:
        return milliseconds_of(self.per, "per") * 1000

    @property
    def grace_us(self) -> int:
        """How much later than the moment that it was given a caller may begin."""
        return min(round(self.window_us * _GRACE_SHARE), _GRACE_US_MAX)

    @property
    def slack_us_max(self) -> int:
        """How much more than the grace a caller may ask for that keeps missing its moments."""
        return max(self.window_us, _SLACK_US_MAX_MIN)

    @property
    def span_us(self) -> int:
        """The window as it is counted: what is so far apart when it is granted never meets in one.

        What is granted for a moment arrives from then on until the grace and the allowance are
        over. So two arrivals are closer to each other by at most these two than their moments are.
        """
        allowance = min(round(self.window_us * _ALLOWANCE_SHARE), _ALLOWANCE_US_MAX)
        return self.window_us + self.grace_us + allowance

    @property
    def burst(self) -> int:
        """How many requests may come at once after a while without any.

        They are paid for by a slower pace, of which the grace and the allowance leave little in a
        short window, and most in a long one.
        """
        if self.requests is None:
            return 1
        paced = _USED_SHARE_MIN * self.requests * self.span_us / self.window_us
        return max(1, math.floor(self.requests + 1 - paced))

    def pace_us(self, requests: int, slack_us: int = 0) -> int:
        """Return how long that many requests take when all that may come do come.

        ``slack_us`` is by how much more than the grace some of them may be late.
        """
        assert self.requests is not None
        return -(-requests * (self.span_us + slack_us) // (self.requests - self.burst + 1))

    def check_cost(self, cost: Cost) -> None:
        """Check that a cost can be granted at all.

        Raises:
            QuotaTooSmall: it is more than the quota gives in a whole window.
        """
        for field in ("requests", "tokens", "nanodollars"):
            limit, asked = getattr(self, field), getattr(cost, field)
            if limit is not None and asked > limit:
                raise QuotaTooSmall(
                    f"the quota {self.name!r:.80} gives {limit:,} {field} in each window, and "
                    f"{asked:,} are asked for at once: that can never be granted",
                    field=field,
                    size=asked,
                    limit=limit,
                )


def nanodollars_of(dollars: float, field: str) -> int:
    """Return dollars as whole nanodollars.

    Raises:
        InvalidRequest: not an amount of money, or more than anybody has.
    """
    if isinstance(dollars, bool) or not isinstance(dollars, int | float):
        raise InvalidRequest(f"{field} is a number, not {dollars!r:.80}", field=field)
    if not 0 <= dollars <= _LIMIT_MAX / NANODOLLARS_PER_DOLLAR:
        raise InvalidRequest(
            f"{field} is from 0 to {_LIMIT_MAX // NANODOLLARS_PER_DOLLAR:,}, not {dollars!r:.80}",
            field=field,
        )
    return round(dollars * NANODOLLARS_PER_DOLLAR)


def validated_tool_quota(quota: object) -> Quota | None:
    """Return what limits calls of a tool, if anything does.

    Raises:
        InvalidRequest: it is not a Quota, or limits nothing that such a call takes.
    """
    if not isinstance(quota, Quota | None):
        raise InvalidRequest(
            f"quota is a Quota, such as Quota('mail', requests=5), not {quota!r:.80}",
            field="quota",
        )
    if quota is not None and quota.requests is None and quota.concurrency is None:
        raise InvalidRequest(
            f"a call of a tool takes a request, and neither tokens nor dollars: the quota "
            f"{quota.name!r:.80} would let all of them pass; give it requests or concurrency",
            field="quota",
        )
    return quota


def _check_int(field: str, value: int | None, max_value: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= max_value):
        raise InvalidRequest(
            f"a quota's {field} is a whole number from 1 to {max_value:,}, not {value!r:.80}",
            field=field,
        )
