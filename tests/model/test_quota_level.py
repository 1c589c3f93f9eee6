"""What a quota grants: never more than its limit in any window, nearly all of it, to everybody."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import QuotaTooSmall
from holdfast.model.quota import Cost, Quota
from holdfast.model.quota_admission import PermitDeferred, PermitGranted, acquired, slack_needed_us
from holdfast.model.quota_level import (
    HORIZON_US,
    QuotaLevel,
    reconciled,
    released,
    renewed,
    resets_at_us,
)

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
ASKS_MAX = 1_000
"""So often nobody has to ask: who does is starving."""


class Caller(NamedTuple):
    """Somebody who asks, and asks again until it is granted what it needs."""

    comes_us: int
    cost: Cost
    delay: float = 0.0
    """How late its call arrives, as a share of what it may be late by."""
    used: float = 1.0
    """Which share it uses of what it reserved."""
    lasts_us: int = 100_000
    behind_us: int = 0
    """How far its clock is behind that of the others."""
    slack_us: int = 0
    """How much more than the grace it asks for."""


class Arrival(NamedTuple):
    at_us: int
    cost: Cost


class Fleet:
    """Callers that share a quota, each a process of its own, and what arrives at the callee."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.level = QuotaLevel()
        self.arrivals: list[Arrival] = []
        self.waited_us: list[int] = []
        self.asks = 0
        self._order = itertools.count()
        self._agenda: list[tuple[int, int, Any]] = []

    def run(self, callers: list[Caller]) -> None:
        for caller in callers:
            self._at(caller.comes_us, self._ask, caller, None, 1)
        while self._agenda:
            now_us, _, (act, *arguments) = heapq.heappop(self._agenda)
            act(now_us, *arguments)

    def most(self, field: str) -> int:
        """Return the most that was used in any window."""
        window_us = self.quota.window_us
        arrivals = sorted((one.at_us, getattr(one.cost, field)) for one in self.arrivals)
        most = first = total = 0
        for at_us, amount in arrivals:
            total += amount
            while arrivals[first][0] <= at_us - window_us:
                total -= arrivals[first][1]
                first += 1
            most = max(most, total)
        return most

    def _at(self, at_us: int, *what: Any) -> None:
        heapq.heappush(self._agenda, (at_us, next(self._order), what))

    def _ask(self, now_us: int, caller: Caller, told_us: int | None, times: int) -> None:
        assert times < ASKS_MAX, f"{caller} starves"
        self.asks += 1
        behind_us = caller.behind_us
        now_us -= behind_us
        self.level, answer = acquired(
            self.level,
            self.quota,
            caller.cost,
            now_us=now_us,
            retry_at_us=told_us,
            slack_us=caller.slack_us,
        )
        if isinstance(answer, PermitDeferred):
            assert answer.retry_at_us > now_us
            self._at(
                answer.retry_at_us + behind_us, self._ask, caller, answer.retry_at_us, times + 1
            )
            return
        assert now_us <= answer.at_us <= now_us + HORIZON_US
        assert answer.slack_us == caller.slack_us
        late_us = self.quota.span_us - self.quota.window_us + answer.slack_us - behind_us
        arrives_us = answer.at_us + behind_us + int(caller.delay * late_us)
        used = Cost(
            caller.cost.requests,
            int(caller.cost.tokens * caller.used),
            int(caller.cost.nanodollars * caller.used),
        )
        self.arrivals.append(Arrival(arrives_us, used))
        self.waited_us.append(answer.at_us - caller.comes_us)
        self._at(arrives_us + caller.lasts_us, self._settle, caller.cost, used, answer.counted_us)

    def _settle(self, now_us: int, reserved: Cost, used: Cost, at_us: int) -> None:
        self.level = reconciled(
            self.level, self.quota, reserved, used=used, at_us=at_us, now_us=now_us
        )


class Holders:
    """Callers that hold a slot for a while, and ask for the next one in the write that frees it."""

    def __init__(self, quota: Quota, lasts_ms: int) -> None:
        assert quota.concurrency is not None
        self.quota = quota
        self.level = QuotaLevel()
        self.calls = Counter[str]()
        self.now_us = NOW_US
        self._places = quota.concurrency
        self._lasts_us = lasts_ms * 1000
        self._held_us = 0
        self._dice = Random(quota.concurrency)
        self._agenda: list[tuple[int, str, int | None]] = []

    def come(self, at_us: int, name: str, *, told_us: int | None = None) -> None:
        heapq.heappush(self._agenda, (at_us, name, told_us))

    def run(self, *, calls: int) -> None:
        while self.calls.total() < calls:
            self.now_us, name, told_us = heapq.heappop(self._agenda)
            self.level = released(self.level, [name], now_ms=self.now_us // 1000)
            self.level, answer = acquired(
                self.level, self.quota, Cost(), now_us=self.now_us, retry_at_us=told_us, token=name
            )
            if isinstance(answer, PermitDeferred):
                self.come(answer.retry_at_us, name, told_us=answer.retry_at_us)
                continue
            assert len(self.level.permits) <= self._places
            self.calls[name] += 1
            lasts_us = int(self._lasts_us * self._dice.uniform(0.5, 1.5))
            self._held_us += lasts_us
            self.come(answer.at_us + lasts_us, name)

    @property
    def used(self) -> float:
        """The share of the time for which the slots were held, about."""
        return self._held_us / (self.now_us - NOW_US) / self._places


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    limits: dict[str, Any] = {
        "requests": draw(st.none() | st.integers(1, 60)),
        "tokens": draw(st.none() | st.integers(100, 5_000)),
        "usd": draw(st.none() | st.floats(0.0001, 0.01)),
    }
    if all(limit is None for limit in limits.values()):
        limits["requests"] = 7
    return Quota("q", **limits, per=draw(st.sampled_from([1, 2.5, 60])))


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Quota, list[Caller]]:
    quota = draw(quotas())
    seconds = quota.window_us / SECOND_US
    shares = st.floats(0, 1)
    callers = []
    comes_us = NOW_US
    for _ in range(draw(st.integers(1, 60))):
        # Most come together, some after a while, in which the quota recovers.
        gap = draw(st.sampled_from([0, 0, 0, 0.001, 0.03, 0.3, 1.1]))
        comes_us += int(gap * seconds * SECOND_US)
        cost = Cost(
            draw(st.integers(0, min(3, quota.requests or 3))),
            int(draw(shares) * (quota.tokens or 0)),
            int(draw(shares) * (quota.nanodollars or 0)),
        )
        lasts_us = int(draw(shares) * seconds * SECOND_US)
        # Most are in time, and what they ask for more changes now and then.
        tardy_us = draw(st.sampled_from([0, 0, 0, 3, 10, 60])) * quota.grace_us
        callers.append(
            Caller(
                comes_us,
                cost,
                draw(shares | st.sampled_from([0.0, 1.0])),
                draw(shares),
                lasts_us,
                slack_us=slack_needed_us(quota, tardy_us),
            )
        )
    return quota, callers


# One caller has a slack of a minute or more. The quota limits no requests.
SLACK_OF_TOKENS = (
    Quota("q", tokens=3, per=60),
    [
        Caller(NOW_US, Cost(0, 2), delay=1.0, slack_us=60 * SECOND_US),
        Caller(NOW_US, Cost(0, 2)),
        Caller(NOW_US, Cost(0, 0)),
    ],
)
SLACK_OF_MONEY = (
    Quota("q", usd=0.000000003, per=3600),
    [
        Caller(NOW_US, Cost(0, 0, 2), delay=1.0, slack_us=64 * SECOND_US),
        Caller(NOW_US, Cost(0, 0, 2)),
    ],
)


@settings(max_examples=300, deadline=None)
@given(scenes())
@example(SLACK_OF_MONEY)
def test_no_window_at_the_callee_sees_more_than_the_limit(
    scene: tuple[Quota, list[Caller]],
) -> None:
    quota, callers = scene
    fleet = Fleet(quota)
    fleet.run(callers)
    assert len(fleet.arrivals) == len(callers)
    for field in ("requests", "tokens", "nanodollars"):
        limit = getattr(quota, field)
        assert limit is None or fleet.most(field) <= limit


@settings(max_examples=100, deadline=None)
@given(scenes(), st.lists(st.floats(0, 1), min_size=1, max_size=5))
@example(SLACK_OF_TOKENS, [0.0, 0.0, 0.75])
def test_clocks_may_differ_by_what_is_allowed_for(
    scene: tuple[Quota, list[Caller]], shares: list[float]
) -> None:
    quota, callers = scene
    allowed_us = quota.span_us - quota.window_us - quota.grace_us
    behind = itertools.cycle([int(share * allowed_us) for share in shares])
    fleet = Fleet(quota)
    fleet.run([caller._replace(behind_us=next(behind)) for caller in callers])
    for field in ("requests", "tokens", "nanodollars"):
        limit = getattr(quota, field)
        assert limit is None or fleet.most(field) <= limit


@pytest.mark.parametrize("per", [1, 60, 24 * 3600], ids=["second", "minute", "day"])
@pytest.mark.parametrize("requests", [20, 100, 2_000])
def test_nine_tenths_of_the_requests_are_used(requests: int, per: int) -> None:
    quota = Quota("q", requests=requests, per=per)
    fleet = Fleet(quota)
    # Three windows' worth of callers that all come at once, and whose calls are late at random.
    random = Random(1)
    fleet.run([Caller(NOW_US, Cost(), random.random()) for _ in range(3 * requests)])
    took_us = max(one.at_us for one in fleet.arrivals) - NOW_US
    assert 3 * quota.window_us / took_us >= 0.9
    assert fleet.most("requests") <= requests
    # Each was told to come back about when it was its turn.
    assert fleet.asks <= 2.2 * 3 * requests


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3])
def test_most_of_the_tokens_are_used_whatever_their_lumps(share: float) -> None:
    quota = Quota("q", tokens=100_000, per=60)
    fleet = Fleet(quota)
    tokens = int(100_000 * share)
    count = int(10 / share)
    fleet.run([Caller(NOW_US, Cost(tokens=tokens)) for _ in range(count)])
    # The last lump fills a window of its own.
    took_us = max(one.at_us for one in fleet.arrivals) - NOW_US + quota.window_us
    whole = (100_000 // tokens) * tokens / 100_000
    assert count * tokens / 100_000 * quota.window_us / took_us >= 0.87 * whole
    assert fleet.most("tokens") <= 100_000


def test_what_is_reserved_and_not_used_counts_no_more() -> None:
    quota = Quota("q", tokens=100_000, per=60)
    fleet = Fleet(quota)
    # Each reserves ten times of what it needs, as calls of models do: 800,000 tokens a minute.
    callers = [
        Caller(NOW_US + number * 3 * SECOND_US // 4, Cost(tokens=10_000), used=0.1)
        for number in range(240)
    ]
    fleet.run(callers)
    assert max(fleet.waited_us) < SECOND_US
    # Those that come at once, before anybody knows how little they need, ask again now and then.
    burst = [Caller(NOW_US + 3600 * SECOND_US, Cost(tokens=10_000), used=0.1) for _ in range(90)]
    fleet.run(burst)
    assert max(fleet.waited_us) < 180 * SECOND_US  # and not nine minutes
    assert fleet.most("tokens") <= 100_000


def test_what_is_used_beyond_what_was_reserved_counts_too() -> None:
    quota = Quota("q", tokens=100, per=60)
    level, answer = acquired(QuotaLevel(), quota, Cost(tokens=10), now_us=NOW_US)
    assert isinstance(answer, PermitGranted)
    level = reconciled(
        level, quota, Cost(tokens=10), used=Cost(tokens=95), at_us=answer.at_us, now_us=NOW_US + 5
    )
    level, answer = acquired(level, quota, Cost(tokens=6), now_us=NOW_US + 10)
    assert isinstance(answer, PermitDeferred)
    _, answer = acquired(level, quota, Cost(tokens=5), now_us=NOW_US + 10)
    assert isinstance(answer, PermitGranted)


@pytest.mark.parametrize(
    "limits",
    [{"tokens": 10_000}, {"requests": 50, "tokens": 10_000}],
    ids=["tokens", "requests and tokens"],
)
def test_one_that_needs_all_of_it_gets_it_among_many_that_need_little(
    limits: dict[str, int],
) -> None:
    quota = Quota("q", **limits, per=1)
    fleet = Fleet(quota)
    # For twenty seconds, three times as many small ones come as the quota lets through.
    small = [
        Caller(NOW_US + number * SECOND_US // 300, Cost(tokens=100)) for number in range(6_000)
    ]
    large = Caller(NOW_US + 3 * SECOND_US, Cost(tokens=10_000))
    fleet.run([*small, large])
    at_us = next(one.at_us for one in fleet.arrivals if one.cost.tokens == 10_000)
    # In front of it are those that came before it; none of those that came after.
    in_front = sum(caller.comes_us <= large.comes_us for caller in small)
    pace = min(limits.get("requests", 1_000), limits["tokens"] / 100)
    assert at_us - NOW_US <= 1.25 * in_front / pace * SECOND_US + 5 * SECOND_US
    assert fleet.most("tokens") <= 10_000


def test_newcomers_do_not_overtake_those_who_were_told_to_come_back() -> None:
    quota, level = Quota("q", requests=100), QuotaLevel()
    told: list[int] = []
    for _ in range(300):
        level, answer = acquired(level, quota, Cost(), now_us=NOW_US)
        if isinstance(answer, PermitDeferred):
            told.append(answer.retry_at_us)
    assert told == sorted(told)
    now_us = told[0]
    _, newcomer = acquired(level, quota, Cost(), now_us=now_us)
    assert isinstance(newcomer, PermitDeferred)
    assert newcomer.retry_at_us >= told[-1]
    _, returning = acquired(level, quota, Cost(), now_us=now_us, retry_at_us=told[0])
    assert isinstance(returning, PermitGranted)
    # What nobody uses is for whoever comes.
    _, newcomer = acquired(level, quota, Cost(), now_us=NOW_US + 2 * SECOND_US)
    assert isinstance(newcomer, PermitGranted)


def test_who_is_never_said_to_have_been_told_still_gets_on() -> None:
    """Should nobody say that it was told, what nobody uses goes to whoever comes."""
    quota, level = Quota("q", requests=10), QuotaLevel()
    waiting, now_us = 100, NOW_US
    while waiting and now_us < NOW_US + 100 * SECOND_US:
        level, answer = acquired(level, quota, Cost(), now_us=now_us)
        waiting -= isinstance(answer, PermitGranted)
        now_us += 50_000
    assert waiting == 0


# --- slack ----------------------------------------------------------------------------------------


def test_slack_is_given_in_few_sizes_to_those_who_are_later_than_the_grace() -> None:
    quota = Quota("q", requests=40, per=2)
    grace_us = quota.grace_us
    assert slack_needed_us(quota, grace_us) == 0
    given = {slack_needed_us(quota, tardy_us) for tardy_us in range(0, 5 * SECOND_US, 1_000)}
    assert len(given) <= 8
    assert max(given) == quota.slack_us_max == quota.window_us
    for tardy_us in range(grace_us + 1, SECOND_US, 10_000):
        assert grace_us + slack_needed_us(quota, tardy_us) >= min(2 * tardy_us, quota.slack_us_max)


@pytest.mark.parametrize("slow", [1, 4])
def test_slack_costs_others_no_more_than_it_must(slow: int) -> None:
    """One slow caller of four, or all of them: the pace is that of a window longer by the slack."""
    quota = Quota("q", requests=100, per=2)
    slack_us = slack_needed_us(quota, 300_000)
    random = Random(1)
    fleet = Fleet(quota)
    fleet.run(
        [
            Caller(NOW_US, Cost(), random.random(), slack_us=slack_us if n % 4 < slow else 0)
            for n in range(500)
        ]
    )
    took_us = max(one.at_us for one in fleet.arrivals) - NOW_US
    assert took_us <= 5 * (quota.span_us + slack_us) * 1.15
    assert fleet.most("requests") <= 100


def test_the_pace_is_as_before_once_no_slack_is_in_force() -> None:
    quota = Quota("q", requests=40, per=2)
    level, answer = acquired(QuotaLevel(), quota, Cost(), now_us=NOW_US, slack_us=SECOND_US)
    assert isinstance(answer, PermitGranted)
    assert level.tat_us == NOW_US + quota.pace_us(1, SECOND_US) > NOW_US + quota.pace_us(1)
    over_us = NOW_US + 2 * quota.span_us + SECOND_US
    level, answer = acquired(level, quota, Cost(), now_us=over_us)
    assert level.slacks == ()
    assert level.tat_us == over_us + quota.pace_us(1)


def test_less_slack_does_not_make_more_of_it_last_longer() -> None:
    quota = Quota("q", requests=40, per=2)
    level, _ = acquired(QuotaLevel(), quota, Cost(), now_us=NOW_US, slack_us=2 * SECOND_US)
    over_us = level.slacks[0].expires_us + quota.pace_us(quota.burst)
    for now_us in range(NOW_US, over_us + SECOND_US, 100_000):
        level, _ = acquired(level, quota, Cost(), now_us=now_us, slack_us=40_000)
        assert len(level.slacks) <= 2
    assert [slack.slack_us for slack in level.slacks] == [40_000]


# --- what was written before ----------------------------------------------------------------------


@pytest.mark.parametrize("after", [20, 500])
def test_another_limit_counts_from_the_next_window_on(after: int) -> None:
    before = Quota("q", requests=100, tokens=1_000)
    fleet = Fleet(before)
    fleet.run([Caller(NOW_US, Cost(tokens=10)) for _ in range(150)])
    changed_us = max(one.at_us for one in fleet.arrivals)
    fleet.quota = Quota("q", requests=after, tokens=after * 10)
    fleet.run([Caller(changed_us, Cost(tokens=10)) for _ in range(3 * after)])
    assert fleet.most("requests") <= max(100, after)
    fleet.arrivals = [one for one in fleet.arrivals if one.at_us > changed_us]
    assert fleet.most("requests") <= after
    assert fleet.most("tokens") <= after * 10
    took_us = max(one.at_us for one in fleet.arrivals) - changed_us
    assert 3 * SECOND_US / took_us >= 0.65  # the first window is in part that of the old limit


@pytest.mark.parametrize("ahead_seconds", [120, 3600, 10**9])
def test_a_clock_that_was_far_ahead_is_forgotten(ahead_seconds: int) -> None:
    quota = Quota("q", requests=10, tokens=100, concurrency=20)
    wrong_us = NOW_US + ahead_seconds * SECOND_US
    level = QuotaLevel()
    for number in range(20):
        level, _ = acquired(level, quota, Cost(tokens=10), now_us=wrong_us, token=f"{number}")
    level, answer = acquired(level, quota, Cost(tokens=10), now_us=NOW_US, token="a")
    assert isinstance(answer, PermitDeferred)
    until_us = NOW_US + 60 * SECOND_US + 5 * quota.span_us
    level, answer = acquired(
        level, quota, Cost(tokens=10), now_us=until_us, retry_at_us=answer.retry_at_us, token="b"
    )
    if ahead_seconds > 3600:
        assert isinstance(answer, PermitGranted)
    level, answer = acquired(level, quota, Cost(), now_us=until_us + 130 * SECOND_US, token="c")
    assert isinstance(answer, PermitGranted)


def test_what_a_wrong_clock_wrote_makes_room_no_earlier_for_others() -> None:
    quota = Quota("q", tokens=100, per=3600)
    late_us = NOW_US + 2 * SECOND_US
    level, _ = acquired(QuotaLevel(), quota, Cost(tokens=50), now_us=late_us)
    level, _ = acquired(level, quota, Cost(tokens=50), now_us=NOW_US + 600 * SECOND_US)
    # The time of the wrong clock becomes NOW_US + 1 s, which is before the other one.
    level, answer = acquired(level, quota, Cost(tokens=100), now_us=NOW_US)
    assert isinstance(answer, PermitDeferred)
    free_us = late_us + quota.span_us
    for early_us in range(2 * SECOND_US, 0, -100_000):
        _, answer = acquired(
            level, quota, Cost(tokens=100), now_us=free_us - early_us, retry_at_us=free_us
        )
        assert isinstance(answer, PermitDeferred) or answer.at_us >= free_us


def test_a_clock_that_is_set_back_only_delays() -> None:
    quota = Quota("q", requests=10)
    level, first = acquired(QuotaLevel(), quota, Cost(), now_us=NOW_US)
    level, second = acquired(level, quota, Cost(), now_us=NOW_US - 500_000)
    assert isinstance(first, PermitGranted)
    assert isinstance(second, PermitGranted)
    assert second.at_us >= first.at_us + quota.pace_us(1)
    _, third = acquired(level, quota, Cost(), now_us=NOW_US - 30 * SECOND_US)
    assert isinstance(third, PermitDeferred)


def test_a_level_that_lasts_no_longer_is_that_of_a_new_quota() -> None:
    quota = Quota("q", requests=5, tokens=100, concurrency=5)
    level = QuotaLevel()
    for number in range(8):
        level, _ = acquired(level, quota, Cost(tokens=20), now_us=NOW_US, token=f"{number}")
    over_us = resets_at_us(level, quota)
    assert over_us >= NOW_US + 60 * SECOND_US
    for cost in (Cost(), Cost(tokens=100), Cost(5, 100)):
        late = acquired(level, quota, cost, now_us=over_us + 1, token="x")[1]
        assert late == acquired(QuotaLevel(), quota, cost, now_us=over_us + 1, token="x")[1]


# --- slots ----------------------------------------------------------------------------------------


def test_slots_are_leased_and_released_once() -> None:
    quota = Quota("q", concurrency=2)
    level = QuotaLevel()
    for token in ("a", "b"):
        level, answer = acquired(level, quota, Cost(), now_us=NOW_US, token=token)
        assert isinstance(answer, PermitGranted)
    level, answer = acquired(level, quota, Cost(), now_us=NOW_US, token="c")
    assert isinstance(answer, PermitDeferred)
    assert set(level.permits) == {"a", "b"}
    now_ms = NOW_US // 1000
    level = released(level, ["a", "a", "unknown"], now_ms=now_ms + 5)
    level = released(level, ["a"], now_ms=now_ms + 6)
    told_us = answer.retry_at_us
    level, answer = acquired(
        level, quota, Cost(), now_us=NOW_US + 7_000, retry_at_us=told_us, token="c"
    )
    assert isinstance(answer, PermitGranted)
    assert set(level.permits) == {"b", "c"}


def test_a_slot_whose_lease_lapsed_counts_no_more() -> None:
    quota = Quota("q", concurrency=1)
    level, _ = acquired(QuotaLevel(), quota, Cost(), now_us=NOW_US, token="a", lease_ms=1_000)
    level = renewed(level, ["a", "gone"], expires_ms=NOW_US // 1000 + 3_000)
    assert set(level.permits) == {"a"}
    _, answer = acquired(level, quota, Cost(), now_us=NOW_US + 2_999_000, token="b", lease_ms=1_000)
    assert isinstance(answer, PermitDeferred)
    level, answer = acquired(
        level, quota, Cost(), now_us=NOW_US + 3_000_000, token="b", lease_ms=1_000
    )
    assert isinstance(answer, PermitGranted)
    assert set(level.permits) == {"b"}


def test_those_who_wait_for_a_slot_come_back_as_slots_become_free() -> None:
    quota = Quota("q", concurrency=4)
    level, now_ms = QuotaLevel(), NOW_US // 1000
    for number in range(40):
        level, _ = acquired(level, quota, Cost(), now_us=NOW_US, token=f"{number}")
        level = released(level, [f"{number}"], now_ms=now_ms + 20_000)
    for number in range(4):
        level, _ = acquired(level, quota, Cost(), now_us=NOW_US, token=f"{number}")
    told: list[int] = []
    for _ in range(5):
        level, answer = acquired(level, quota, Cost(), now_us=NOW_US, token="x")
        assert isinstance(answer, PermitDeferred)
        told.append(answer.retry_at_us)
    # A slot becomes free every 5 seconds. They come twice as often, lest it stands free for long.
    assert all(
        2_250_000 <= after - before <= 2_550_000 for before, after in itertools.pairwise(told)
    )


@pytest.mark.parametrize("lasts_ms", [200, 30_000])
@pytest.mark.parametrize("concurrency", [1, 2, 40])
def test_who_asks_again_as_it_releases_does_not_keep_a_slot_for_ever(
    concurrency: int, lasts_ms: int
) -> None:
    """As many as there are slots release theirs and ask anew in one write; three others wait."""
    others = 3
    fleet = Holders(Quota("q", concurrency=concurrency), lasts_ms)
    for number in range(concurrency + others):
        # All of the others come last, while all slots are taken.
        fleet.come(NOW_US + number, f"{number}")
    fleet.run(calls=concurrency * 100)
    each = fleet.calls.total() / (concurrency + others)
    assert min(fleet.calls[f"{number}"] for number in range(concurrency + others)) > each / 2
    assert max(fleet.calls.values()) < 2 * each
    assert fleet.used > 0.75, "slots stood free while callers waited"


@pytest.mark.parametrize("lasts_ms", [200, 30_000])
@pytest.mark.parametrize("concurrency", [1, 2, 40])
def test_a_line_of_those_who_died_keeps_no_slot_for_long(concurrency: int, lasts_ms: int) -> None:
    fleet = Holders(Quota("q", concurrency=concurrency), lasts_ms)
    for number in range(concurrency):
        fleet.come(NOW_US, f"{number}")
    fleet.run(calls=concurrency * 10)
    full = fleet.level
    for _ in range(1_000):
        full, _ = acquired(full, fleet.quota, Cost(), now_us=fleet.now_us, token="dead")
    assert full.queue_end_us > fleet.now_us + 100 * lasts_ms * 1000 // concurrency
    level = released(full, list(full.permits), now_ms=fleet.now_us // 1000)
    _, answer = acquired(level, fleet.quota, Cost(), now_us=fleet.now_us, token="new")
    if isinstance(answer, PermitDeferred):
        told_us = answer.retry_at_us
        assert told_us <= fleet.now_us + lasts_ms * 1000 + 200_000
        _, answer = acquired(
            level, fleet.quota, Cost(), now_us=told_us, retry_at_us=told_us, token="new"
        )
    assert isinstance(answer, PermitGranted)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_short_calls_do_not_wait_for_a_guess_of_how_long_they_take(concurrency: int) -> None:
    """30 callers, each in a process of its own, make one call of 0.1 s each."""
    quota, level = Quota("q", concurrency=concurrency), QuotaLevel()
    agenda: list[tuple[int, int, int | None, bool]] = [(NOW_US, n, None, False) for n in range(30)]
    now_us, asks = NOW_US, 0
    while agenda:
        now_us, caller, told_us, ends = heapq.heappop(agenda)
        if ends:
            level = released(level, [f"{caller}"], now_ms=now_us // 1000)
            continue
        asks += 1
        level, answer = acquired(
            level, quota, Cost(), now_us=now_us, retry_at_us=told_us, token=f"{caller}"
        )
        if isinstance(answer, PermitGranted):
            heapq.heappush(agenda, (answer.at_us + 100_000, caller, None, True))
        else:
            heapq.heappush(agenda, (answer.retry_at_us, caller, answer.retry_at_us, False))
    assert now_us - NOW_US <= 1.5 * 30 * 100_000 / concurrency
    assert asks <= 3.5 * 30


def test_callers_ask_less_and_less_often_before_the_first_release() -> None:
    quota, level = Quota("q", concurrency=2), QuotaLevel()
    for token in ("a", "b"):
        level, _ = acquired(level, quota, Cost(), now_us=NOW_US, token=token)
    agenda: list[tuple[int, int | None]] = [(NOW_US, None)] * 28
    asks = Counter[int]()
    while agenda[0][0] < NOW_US + 40 * SECOND_US:
        now_us, told_us = heapq.heappop(agenda)
        asks[(now_us - NOW_US) // (10 * SECOND_US)] += 1
        level, answer = acquired(
            level, quota, Cost(), now_us=now_us, retry_at_us=told_us, token="x"
        )
        assert isinstance(answer, PermitDeferred)
        heapq.heappush(agenda, (answer.retry_at_us, answer.retry_at_us))
    # As soon as short calls would be over, and after 10 s hardly more often than long ones end.
    assert asks[0] <= 4 * 28
    assert max(asks[n] for n in (1, 2, 3)) <= 20


def test_the_first_release_tells_how_long_slots_are_held() -> None:
    quota, now_ms = Quota("q", concurrency=2), NOW_US // 1000
    level, _ = acquired(QuotaLevel(), quota, Cost(), now_us=NOW_US, token="a")
    level = released(level, ["a"], now_ms=now_ms + 8_000)
    assert level.held_ms == 8_000
    level, _ = acquired(level, quota, Cost(), now_us=NOW_US, token="b")
    level = released(level, ["b"], now_ms=now_ms + 4_000)
    assert level.held_ms == 7_000


def test_who_asks_before_its_time_and_finds_no_slot_keeps_its_place() -> None:
    quota, level = Quota("q", concurrency=1), QuotaLevel()
    level, _ = acquired(level, quota, Cost(), now_us=NOW_US, token="a")
    told: list[int] = []
    for token in ("b", "c"):
        level, answer = acquired(level, quota, Cost(), now_us=NOW_US, token=token)
        assert isinstance(answer, PermitDeferred)
        told.append(answer.retry_at_us)
    for told_us in told:
        before = level
        level, answer = acquired(
            level, quota, Cost(), now_us=NOW_US, retry_at_us=told_us, token="x"
        )
        assert answer == PermitDeferred(told_us, "slot")
        assert level == before
    # In its turn it goes to the end of the line, and so does one with another place.
    for told_us in (told[0], told[1] + SECOND_US):
        _, answer = acquired(level, quota, Cost(), now_us=told[0], retry_at_us=told_us, token="b")
        assert isinstance(answer, PermitDeferred)
        assert told[1] < answer.retry_at_us < told[1] + SECOND_US


def test_a_cost_over_the_limit_is_refused_with_both() -> None:
    quota = Quota("q", requests=5, tokens=100, usd=0.5)
    for cost, field, limit in [
        (Cost(6), "requests", 5),
        (Cost(tokens=101), "tokens", 100),
        (Cost(nanodollars=600_000_000), "usd", 0.5),
    ]:
        with pytest.raises(QuotaTooSmall) as refused:
            acquired(QuotaLevel(), quota, cost, now_us=NOW_US)
        assert (refused.value.field, refused.value.limit) == (field, limit)
        assert refused.value.size == (0.6 if field == "usd" else limit + 1)
