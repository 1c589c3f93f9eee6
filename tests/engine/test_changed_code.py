"""What happens to a paused run when a worker with changed code resumes it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Context, Duration, Graph, RunHandle, signal, workflow
from holdfast.errors import RunFailed, RunQuarantined
from tests.engine.support import House

Body = Callable[[Any, Context], Any]
GO = signal("go", bool)


@dataclass
class Old:
    amount: int
    paid: str = ""


@dataclass
class WithDefault:
    amount: int
    paid: str = ""
    note: str = "none"


@dataclass
class WithRequired:
    amount: int
    note: str
    paid: str = ""


@dataclass
class OtherType:
    amount: str
    paid: str = ""


@dataclass
class Fewer:
    amount: int


def made_of(state: type, body: Body, *, node: str = "pay", version: int = 1) -> Graph:
    graph = Graph("order", state, version=version)
    graph.node(name=node)(body)
    return graph


class Services:
    """Services that note what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def charge(self, amount: int) -> str:
        self.asked.append(("charge", amount))
        return f"charged {amount}"

    async def mail(self, number: int) -> str:
        self.asked.append(("mail", number))
        return f"mail {number}"


@pytest.fixture
def services() -> Services:
    return Services()


async def resumed(
    house: House, services: Services, new: Graph, *, key: str | None = None
) -> RunHandle:
    """Pause a run in the old code, and let a worker with the new code resume and end it."""

    async def pay(state: Old, ctx: Context) -> dict[str, str]:
        paid = await ctx.with_options(key=key).call(services.charge, 40)
        await ctx.wait(GO)
        return {"paid": paid}

    hf = house.open()
    run = await hf.start(made_of(Old, pay), Old(40), id="o-1")
    async with house.worker(hf, made_of(Old, pay)) as worker:
        await house.quiet(worker)
    assert (await run.get()).status == "waiting"
    assert services.asked == [("charge", 40)]
    services.asked.clear()
    await run.signal("go", True)
    later = house.open()
    async with house.worker(later, new, resumes_max=1) as worker:
        await house.quiet(worker)
    return later.run("o-1", graph=new)


async def waits_only(state: Any, ctx: Context) -> None:
    await ctx.wait(GO)


async def test_a_call_that_was_added_is_made_and_the_recorded_one_is_not(
    house: House, services: Services
) -> None:
    async def pay(state: Old, ctx: Context) -> dict[str, str]:
        mailed = await ctx.call(services.mail, 7)
        paid = await ctx.call(services.charge, 40)
        await ctx.wait(GO)
        return {"paid": f"{paid}, {mailed}"}

    run = await resumed(house, services, made_of(Old, pay))
    assert (await run.result(timeout=10)).paid == "charged 40, mail 7"
    assert services.asked == [("mail", 7)]


async def test_a_call_that_was_removed_is_forgotten(house: House, services: Services) -> None:
    run = await resumed(house, services, made_of(Old, waits_only))
    assert (await run.result(timeout=10)).paid == ""
    assert services.asked == []


async def test_a_call_of_the_same_function_before_a_recorded_one_gets_its_record(
    house: House, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    async def pay(state: Old, ctx: Context) -> dict[str, str]:
        fee = await ctx.call(services.charge, 1)
        paid = await ctx.call(services.charge, 40)
        await ctx.wait(GO)
        return {"paid": f"{fee}, {paid}"}

    with caplog.at_level(logging.WARNING, "holdfast.calls"):
        run = await resumed(house, services, made_of(Old, pay))
        assert (await run.result(timeout=10)).paid == "charged 40, charged 40"
    assert services.asked == [("charge", 40)], "the second call is made, and the first is not"
    assert "charge#1 has other arguments" in caplog.text


async def test_other_arguments_of_a_recorded_call_get_its_record(
    house: House, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    async def pay(state: Old, ctx: Context) -> dict[str, str]:
        paid = await ctx.call(services.charge, 41)
        await ctx.wait(GO)
        return {"paid": paid}

    with caplog.at_level(logging.WARNING, "holdfast.calls"):
        run = await resumed(house, services, made_of(Old, pay))
        assert (await run.result(timeout=10)).paid == "charged 40"
    assert services.asked == []
    assert "charge#1 has other arguments" in caplog.text


async def test_another_function_in_the_place_of_a_recorded_call_is_called(
    house: House, services: Services
) -> None:
    async def pay(state: Old, ctx: Context) -> dict[str, str]:
        mailed = await ctx.call(services.mail, 40)
        await ctx.wait(GO)
        return {"paid": mailed}

    run = await resumed(house, services, made_of(Old, pay))
    assert (await run.result(timeout=10)).paid == "mail 40"
    assert services.asked == [("mail", 40)]


@pytest.mark.parametrize("name", ["go", "again"])
async def test_a_wait_that_was_added_pauses_the_run_again(
    house: House, services: Services, name: str
) -> None:
    """A wait of the same name before it takes the answer that the old one waited for."""

    async def pay(state: Old, ctx: Context) -> dict[str, str]:
        first = await ctx.wait(GO)
        second = await ctx.wait(signal(name, bool))
        return {"paid": f"{first} {second}"}

    run = await resumed(house, services, made_of(Old, pay))
    row = await run.get()
    assert (row.status, [wait.signal for wait in row.waits]) == ("waiting", [name])


async def test_another_call_under_a_recorded_key_fails_the_run(
    house: House, services: Services
) -> None:
    async def pay(state: Old, ctx: Context) -> None:
        await ctx.with_options(key="o-1/charge").call(services.charge, 41)

    run = await resumed(house, services, made_of(Old, pay), key="o-1/charge")
    with pytest.raises(RunFailed) as failed:
        await run.result(timeout=10)
    assert failed.value.kind == "CallChanged"
    assert services.asked == []


@pytest.mark.parametrize("state", [WithDefault, Fewer])
async def test_a_state_that_fits_is_read(house: House, services: Services, state: type) -> None:
    run = await resumed(house, services, made_of(state, waits_only))
    result = await run.result(timeout=10)
    assert result == state(40)
    assert (await run.state()) == state(40)


@pytest.mark.parametrize("state", [WithRequired, OtherType])
async def test_a_state_that_does_not_fit_fails_the_run_which_can_be_retried(
    house: House, services: Services, state: type
) -> None:
    run = await resumed(house, services, made_of(state, waits_only))
    with pytest.raises(RunFailed) as failed:
        await run.result(timeout=10)
    assert failed.value.kind == "InvalidState"

    await run.retry(keep_answers=True)
    hf = house.open()
    async with house.worker(hf, made_of(Old, waits_only)) as worker:
        await house.quiet(worker)
    assert (await run.get()).status == "finished"


async def test_a_node_that_is_gone_quarantines_the_run(house: House, services: Services) -> None:
    run = await resumed(house, services, made_of(Old, waits_only, node="settle"))
    with pytest.raises(RunQuarantined) as quarantined:
        await run.result(timeout=10)
    assert quarantined.value.kind == "UnknownNode"


async def test_a_higher_version_takes_the_run_over(house: House, services: Services) -> None:
    run = await resumed(house, services, made_of(Old, waits_only, version=2))
    assert (await run.result(timeout=10)).paid == ""
    assert (await run.get()).version == 1


async def test_a_wait_that_has_begun_keeps_its_deadline(house: House) -> None:
    def waiting(max_wait: Duration) -> Graph:
        async def pay(state: Old, ctx: Context) -> dict[str, str]:
            return {"paid": str(await ctx.wait(GO, max_wait=max_wait))}

        return made_of(Old, pay)

    hf = house.open()
    run = await hf.start(waiting("5h"), Old(40))
    async with house.worker(hf, waiting("5h")) as worker:
        await house.quiet(worker)
    begun = (await run.get()).waits
    later = house.open()
    async with house.worker(later, waiting("1h")) as worker:
        await house.move(2 * 3600, worker)
        assert (await run.get()).waits == begun
        await house.move(3 * 3600, worker)
    with pytest.raises(RunFailed) as failed:
        await run.result(timeout=10)
    assert failed.value.kind == "WaitTimedOut"


async def test_a_workflow_that_was_renamed_leaves_its_runs_ready(house: House) -> None:
    async def reimburse(amount: int, ctx: Context) -> bool:
        return await ctx.wait(GO)

    async def repay(amount: int, ctx: Context) -> bool:
        return await ctx.wait(GO)

    hf = house.open()
    run = await hf.start(workflow(reimburse), 40)
    async with house.worker(hf, workflow(reimburse)) as worker:
        await house.quiet(worker)
    await run.signal("go", True)
    async with house.worker(hf, workflow(repay), resumes_max=1) as worker:
        await house.move(3600, worker)
    row = await run.get()
    assert (row.status, row.graph, row.resume_failures) == ("ready", "reimburse", 0)
    async with house.worker(hf, workflow(name="reimburse")(repay)) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=10) is True
