"""Waits of a fixed length are found in the code of nodes, and only those."""

from __future__ import annotations

import asyncio
import datetime
import functools
from typing import Any

import pytest

import holdfast
from holdfast import Graph, days, fail, hours, minutes, signal, timer
from holdfast.graph.declared_waits import DeclaredWait, declared_waits
from holdfast.graph.node import Node

DAY_MS = 24 * 3600 * 1000
WEEK = days(7)
SECONDS = 90
WRITTEN = "1w"
REMINDER = timer(days(1))


class Desk:
    """Has a node that is a method."""

    async def ask(self, state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"), max_wait=days(2))


def found(function: Any, **options: Any) -> list[tuple[str, int]]:
    node = Node(name="ask", function=function, is_sync=False, takes_context=True, **options)
    return [(wait.form, wait.span_ms) for wait in declared_waits([node])]


async def plain(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("go"), max_wait=600)


async def durations(state: Any, context: Any) -> Any:
    await context.wait(signal("go"), max_wait=holdfast.days(7))
    await context.sleep(datetime.timedelta(days=1, hours=12))
    await context.sleep(duration=minutes(1))


async def arithmetic(state: Any, ctx: Any) -> Any:
    await ctx.sleep(7 * 24 * 3600)
    await ctx.sleep(days(1) * 3 + hours(12) / 2 - minutes(1))


async def named(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("go"), max_wait=WEEK)
    await ctx.sleep(SECONDS)


async def nested(state: Any, ctx: Any) -> Any:
    async def both() -> None:
        await ctx.sleep(5)

    await asyncio.gather(both(), ctx.wait(signal("go"), max_wait=6))


async def first_of_several(state: Any, ctx: Any) -> Any:
    await ctx.wait_any(signal("go"), timer(days(7)), timer(duration=SECONDS), max_wait=600)
    await ctx.wait_any(holdfast.timer(5), REMINDER)
    await ctx.wait_any(timer(state["span"]), timer(), timer(1, 2), state["timer"], *state["more"])
    state["timers"].append(timer(days(9)))


async def written(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("go"), max_wait="1h30m")
    await ctx.sleep(WRITTEN)
    await ctx.sleep("1h" * 2)
    await ctx.sleep("soon")


def blocking(state: Any, ctx: Any) -> Any:
    ctx.sleep(5)


def closing(span: Any) -> Any:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.sleep(span)

    return node


async def unknowable(state: Any, ctx: Any) -> Any:
    SECONDS = state["seconds"]  # noqa: N806
    await ctx.sleep(SECONDS)
    await ctx.wait(signal("go"), max_wait=state["span"])
    await ctx.wait(signal("go"), max_wait=days(state["days"]))
    await ctx.wait(signal("go"), max_wait=None)
    await ctx.wait(signal("go"))
    await ctx.sleep(-5)
    await ctx.sleep(1 / 0)
    await ctx.sleep("5" * 3)
    await ctx.sleep(int("5"))
    await ctx.sleep(missing_name)  # type: ignore[name-defined]  # noqa: F821
    await state["clock"].sleep(900)
    await state["event"].wait(max_wait=900)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, [("wait", 600_000)]),
        (durations, [("wait", 7 * DAY_MS), ("sleep", DAY_MS * 3 // 2), ("sleep", 60_000)]),
        (arithmetic, [("sleep", 7 * DAY_MS), ("sleep", DAY_MS * 13 // 4 - 60_000)]),
        (named, [("wait", 7 * DAY_MS), ("sleep", 90_000)]),
        (written, [("wait", 5_400_000), ("sleep", 7 * DAY_MS)]),
        (nested, [("wait", 6_000), ("sleep", 5_000)]),
        (
            first_of_several,
            [
                ("wait", 600_000),
                ("timer", 7 * DAY_MS),
                ("timer", 90_000),
                ("timer", 5_000),
                ("timer", DAY_MS),
            ],
        ),
        (blocking, [("sleep", 5_000)]),
        (closing(days(3)), [("sleep", 3 * DAY_MS)]),
        (functools.partial(plain), [("wait", 600_000)]),
        (Desk().ask, [("wait", 2 * DAY_MS)]),
        (unknowable, []),
        (print, []),
        (lambda state, ctx: ctx.sleep(5), []),
    ],
)
def test_constants_are_found(function: Any, expected: Any) -> None:
    assert sorted(found(function)) == sorted(expected)


def test_a_function_without_source_has_none() -> None:
    made: dict[str, Any] = {}
    exec("async def node(state, ctx):\n    await ctx.sleep(5)\n", made)
    assert found(made["node"]) == []


def test_max_pause_counts() -> None:
    assert found(print, max_pause_ms=5) == [("pause", 5)]


def test_a_graph_tells_which_do_not_fit() -> None:
    inner = Graph("inner", dict)
    inner.node(name="nap")(closing(days(8)))
    graph = Graph("outer", dict)
    graph.node(name="ask", max_pause=days(7), on_stale=fail())(durations)
    graph.route("ask", graph.include(inner))
    assert graph.wait_warnings(7 * DAY_MS) == (
        "node 'ask' has a max_pause of 7d, and the run expires after 7d: the run will "
        "expire before on_stale applies; pass a longer expires=",
        "node 'ask' waits up to 7d, and the run expires after 7d: the wait will time out "
        "at the expiry; pass a longer expires=",
        "node 'inner/nap' sleeps for 8d, and the run expires after 7d: the sleep will "
        "raise WaitBeyondExpiry; pass a longer expires=",
    )
    assert graph.wait_warnings(9 * DAY_MS) == ()


def test_a_graph_tells_which_timers_do_not_fit() -> None:
    graph = Graph("g", dict)
    graph.node(name="ask")(first_of_several)
    assert graph.wait_warnings(7 * DAY_MS) == (
        "node 'ask' waits with a timer of 7d, and the run expires after 7d: the timer "
        "will end at the expiry; pass a longer expires=",
    )


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(DAY_MS, "1d"), (36 * 3_600_000, "1d12h"), (90_000, "1m30s"), (1, "1ms")],
)
def test_spans_are_shown_in_their_unit(span_ms: int, text: str) -> None:
    assert f"waits up to {text}, and" in DeclaredWait("ask", "wait", span_ms).warning(1)
