"""The picture of a workflow: the steps that its code shows, in the order of the source."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from holdfast import Graph, Workflow, agent, days, signal, timer, workflow

ANSWER = signal("answer", str)
MODEL = "small"
LATER = timer(days(2))
support = agent("m")
ship_graph = Graph("shipping", dict)


def charge(order: Any) -> str: ...
def ship(order: Any) -> str: ...
def refund(order: Any) -> str: ...
async def helper(order: Any, ctx: Any) -> str: ...


def arrows(flow: Workflow[Any, Any]) -> list[str]:
    """Return the arrows of a drawing, with labels instead of ids."""
    labels = {"start": "start", "finish": "END"}
    found: list[str] = []
    for line in flow.draw().splitlines()[1:]:
        if box := re.fullmatch(r'    (n\d+)\["(.*)"\]', line):
            labels[box[1]] = box[2]
        elif arrow := re.fullmatch(r"    (\w+) (-.*->) (\w+)", line):
            kind = {"-->": ">", "-.->": "?"}.get(arrow[2], arrow[2][4:-5])
            found.append(f"{labels[arrow[1]]} {kind} {labels[arrow[3]]}")
    return found


def test_steps_are_drawn_in_the_order_of_the_source() -> None:
    @workflow
    async def approve(order: dict[str, Any], ctx: Any) -> str:
        paid = await ctx.call(charge, order)
        answer = await ctx.model("small", f"May we ship? {paid}")
        await ctx.wait(signal("approved"))
        await ctx.sleep(days(3))
        return await ctx.with_options(key="x").call(ship, answer)

    assert approve.draw() == (
        "flowchart TD\n"
        "    start((start))\n"
        '    n0["charge"]\n'
        '    n1["small #40;model#41;"]\n'
        '    n2["wait: approved"]\n'
        '    n3["sleep: 3d"]\n'
        '    n4["ship"]\n'
        "    finish(((END)))\n"
        "    start --> n0\n"
        "    n0 --> n1\n"
        "    n1 --> n2\n"
        "    n2 --> n3\n"
        "    n3 --> n4\n"
        "    n4 --> finish\n"
    )


def test_all_kinds_of_steps_have_names() -> None:
    @workflow
    async def every(order: Any, ctx: Any) -> None:
        await ctx.wait(ANSWER)
        await ctx.wait_any(signal("a"), LATER, timer(days(1)), order)
        await ctx.model(MODEL, "x")
        child = await ctx.start(ship_graph, {})
        await child.result()
        await ctx.run(graph=nightly)
        caller = ctx.with_options(timeout=5)
        await caller.call(asyncio.to_thread, 1)
        await support(ctx, "hello")
        await helper(order, ctx=ctx)
        ctx.heartbeat()

    assert [line.split(" > ")[1] for line in arrows(every)] == [
        "wait: answer",
        "wait: a or 2d or 1d or …",
        "small #40;model#41;",
        "start: shipping",
        "run: nightly",
        "asyncio.to_thread",
        "support …",
        "helper …",
        "END",
    ]


def test_steps_that_cannot_be_read_are_dots() -> None:
    @workflow
    async def computed(order: Any, ctx: Any) -> None:
        chosen = charge if order else ship
        await ctx.call(chosen, order)
        await ctx.call([charge][0], order)
        await ctx.call(order.charge)
        await ctx.call()
        await ctx.model(order, "x")
        await ctx.wait(order)
        await ctx.sleep(order)

    assert [line.split(" > ")[1] for line in arrows(computed)] == [
        *["…"] * 4,
        "… #40;model#41;",
        "wait: …",
        "sleep: …",
        "END",
    ]


def test_arguments_come_before_their_call() -> None:
    @workflow
    async def nested(order: Any, ctx: Any) -> None:
        await ctx.call(ship, await ctx.call(charge, order))

    assert arrows(nested) == ["start > charge", "charge > ship", "ship > END"]


def test_conditions_are_dotted() -> None:
    @workflow
    async def conditional(order: Any, ctx: Any) -> str:
        if order:
            await ctx.call(charge, order)
        elif order is None:
            return "nothing"
        else:
            await ctx.call(refund, order)
        return await ctx.call(ship, order)

    assert arrows(conditional) == [
        "start ? charge",
        "start ? END",
        "start ? refund",
        "charge > ship",
        "refund > ship",
        "ship > END",
    ]


def test_a_condition_without_an_alternative_can_be_passed() -> None:
    @workflow
    async def conditional(order: Any, ctx: Any) -> None:
        order and await ctx.call(charge, order)
        (await ctx.call(refund, 1)) if order else None
        match order:
            case 1:
                await ctx.call(ship, order)

    assert arrows(conditional) == [
        "start ? charge",
        "charge ? refund",
        "start ? refund",
        "refund ? ship",
        "charge ? ship",
        "start ? ship",
        "ship > END",
        "refund ? END",
        "charge ? END",
        "start ? END",
    ]


def test_a_match_with_a_wildcard_cannot_be_passed() -> None:
    @workflow
    async def matching(order: Any, ctx: Any) -> None:
        match order:
            case 1:
                await ctx.call(charge, order)
            case _:
                await ctx.call(ship, order)

    assert "start ? END" not in arrows(matching)


def test_loops_are_repeated() -> None:
    @workflow
    async def loops(order: Any, ctx: Any) -> None:
        for each in order:
            await ctx.call(charge, each)
            if each:
                continue
            await ctx.call(ship, each)

    assert arrows(loops) == [
        "start ? charge",
        "charge ? ship",
        "ship again charge",
        "charge again charge",
        "ship ? END",
        "charge ? END",
        "start ? END",
    ]


def test_an_endless_loop_is_left_by_break_only() -> None:
    @workflow
    async def endless(order: Any, ctx: Any) -> None:
        while True:
            answer = await ctx.wait(ANSWER)
            if answer == "stop":
                break
            await ctx.call(charge, answer)
        await ctx.call(ship, order)

    assert arrows(endless) == [
        "start > wait: answer",
        "wait: answer ? charge",
        "charge again wait: answer",
        "wait: answer ? ship",
        "ship > END",
    ]


def test_a_comprehension_is_a_loop() -> None:
    @workflow
    async def gathered(order: Any, ctx: Any) -> None:
        await asyncio.gather(*(ctx.call(charge, each) for each in order))

    assert "charge again charge" in arrows(gathered)


def test_errors_lead_to_handlers() -> None:
    @workflow
    async def careful(order: Any, ctx: Any) -> None:
        try:
            await ctx.call(charge, order)
            await ctx.call(ship, order)
        except ValueError:
            await ctx.call(refund, order)
            raise
        finally:
            await ctx.call(helper, order)

    assert arrows(careful) == [
        "start > charge",
        "charge > ship",
        "charge error refund",
        "ship error refund",
        "ship > helper",
        "helper > END",
    ]


def test_functions_inside_are_drawn_where_they_are_called() -> None:
    @workflow
    async def outer(order: Any, ctx: Any) -> None:
        async def pay(each: Any) -> str:
            return await ctx.call(charge, each)

        async def again() -> None:
            await again()

        await ctx.call(ship, order)
        await pay(order)
        await again()

    assert arrows(outer) == ["start > ship", "ship > charge", "charge > again …", "again … > END"]


@workflow
def nightly(ctx: Any) -> None:
    ctx.call(charge, 1)
    ctx.sleep(60)


def test_a_plain_function_with_a_context_alone_is_drawn() -> None:
    assert arrows(nightly) == [
        "start > charge",
        "charge > sleep: 1m",
        "sleep: 1m > END",
    ]


def test_a_workflow_without_steps_or_source_is_one_box() -> None:
    @workflow
    async def still(order: Any) -> None: ...

    made: dict[str, Any] = {}
    exec("async def made(order, ctx):\n    await ctx.call(print)", made)
    assert arrows(still) == ["start > still", "still > END"]
    assert arrows(workflow(made["made"])) == ["start > made", "made > END"]


def test_a_workflow_that_only_fails_has_no_end() -> None:
    @workflow
    async def failing(order: Any, ctx: Any) -> None:
        await ctx.call(charge, order)
        raise ValueError

    assert arrows(failing) == ["start > charge"]


@pytest.mark.parametrize("count", [100, 101, 300])
def test_a_drawing_has_an_end(count: int, tmp_path: Any) -> None:
    body = "\n".join(f"    await ctx.call(step{number})" for number in range(count))
    flow = imported(tmp_path, f"async def long(order, ctx):\n{body}\n")
    drawn = flow.draw()
    assert drawn.count("step") == 100
    assert drawn.count('["…"]') == (count > 100)
    assert drawn.endswith(" --> finish\n")


def test_code_that_is_nested_too_deeply_is_one_box(tmp_path: Any) -> None:
    deep = "(" * 80 + "ctx.call(a)" + ")" * 80
    nested = "".join(f"{'    ' * level}if order:\n" for level in range(1, 90))
    flow = imported(tmp_path, f"def deep(order, ctx):\n{nested}{'    ' * 90}{deep}\n")
    assert flow.draw().startswith("flowchart TD\n")


def imported(folder: Any, code: str) -> Workflow[Any, Any]:
    file = folder / "flow.py"
    file.write_text(code)
    names: dict[str, Any] = {}
    exec(compile(code, str(file), "exec"), names)
    return workflow(next(each for each in names.values() if callable(each)))
