"""Webhooks: what is told, in which order, how often, and what happens when nobody listens."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Holdfast, days, signal
from holdfast.clock import ManualClock
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.webhook_watch import list_subscriptions
from holdfast.errors import InvalidRequest, RunFailed, TargetRefused, Throttled, WebhookNotFound
from holdfast.records.keys import SETTINGS, RunKey
from holdfast.records.webhook_delivery import deliveries_partition
from holdfast.storage import Prefix, Put
from holdfast.storage.layout import TOKEN
from holdfast.webhooks.deliverer import Deliverer
from holdfast.webhooks.messages import WebhookMessage
from holdfast.webhooks.sending import SendOutcome

URL = "https://hooks.example/in"


@dataclass
class Order:
    paid: bool = False
    fails: bool = False


orders = Graph("orders", Order)


@orders.node
async def pay(order: Order, ctx: Context) -> Order:
    if order.fails:
        raise ValueError("no money")
    return replace(order, paid=await ctx.wait(signal("paid")))


class FakeSender:
    """Keeps what is sent, and answers as the test says."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, WebhookMessage]] = []
        self.outcome: Callable[[str, WebhookMessage], SendOutcome] = lambda *_: SendOutcome("")
        self.gate: asyncio.Event | None = None
        self.active: dict[str, int] = {}
        self.active_max = 0

    async def send(
        self, url: str, secret: str, message: WebhookMessage, *, now_ms: int
    ) -> SendOutcome:
        self.sent.append((url, message))
        self.active[url] = self.active.get(url, 0) + 1
        self.active_max = max(self.active_max, self.active[url])
        try:
            if self.gate is not None:
                await self.gate.wait()
            return self.outcome(url, message)
        finally:
            self.active[url] -= 1

    def told(self, run: str) -> list[str]:
        """Return the types of the messages about a run."""
        bodies = [json.loads(message.body) for _, message in self.sent]
        return [body["type"] for body in bodies if body["data"].get("id") == run]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hf(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as opened:
        yield opened


def kernel_of(hf: Holdfast) -> Kernel:
    return hf.webhooks._kernel


@pytest.fixture
def sender() -> FakeSender:
    return FakeSender()


class Pump:
    """A deliverer that a test drives: no time passes unless the test says so."""

    def __init__(self, hf: Holdfast, sender: FakeSender, clock: ManualClock) -> None:
        self.deliverer = Deliverer(kernel_of(hf), sender, attempts=Counter())
        self._clock = clock

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    def skip(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def poll(self, *, after: float = 0.0) -> None:
        """Deliver what is due after a time; return when nothing is under way."""
        self._clock.advance(after)
        await self.deliverer._poll()
        await self.settle()

    async def settle(self) -> None:
        while self.deliverer._tasks:
            await asyncio.wait(list(self.deliverer._tasks.values()))

    async def nudge(self, hf: Holdfast, id: str) -> None:
        row = await hf.run(id).get()
        self.deliverer._on_released(hf.run(id)._key, row.generation)
        await self.poll()


@pytest.fixture
def pump(hf: Holdfast, sender: FakeSender, clock: ManualClock) -> Pump:
    return Pump(hf, sender, clock)


async def start(hf: Holdfast, id: str, **options: Any) -> None:
    """Start a run and carry it as far as it goes."""
    async with hf.worker([orders]):
        run = await hf.start(orders, Order(**options), id=id)
        if options.get("fails"):
            with pytest.raises(RunFailed):
                await run.result()
        else:
            await run.until("waiting")


async def finish(hf: Holdfast, id: str) -> None:
    async with hf.worker([orders]):
        await hf.run(id).signal("paid", True)
        await hf.run(id).result()


async def items_of(hf: Holdfast, id: str) -> list[Any]:
    run = hf.run(id)._key
    return [item async for item in kernel_of(hf).webhook_items.query_all(run.pk, Prefix("HOOK#"))]


# --- what is told ---------------------------------------------------------------------------------


async def test_a_webhook_is_told_of_the_start_the_pause_and_the_end(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL)
    await start(hf, "o-1")
    await pump.poll(after=2)
    assert sender.told("o-1") == ["run.started", "run.paused"]
    await finish(hf, "o-1")
    await pump.nudge(hf, "o-1")
    assert sender.told("o-1") == ["run.started", "run.paused", "run.finished"]
    bodies = [json.loads(message.body) for _, message in sender.sent]
    row = (await hf.run("o-1").get()).as_dict()
    assert bodies[-1]["data"] == row
    assert bodies[1]["data"]["reason"] == "signal"
    assert all(set(body) == {"type", "timestamp", "data"} for body in bodies)
    assert len({message.id for _, message in sender.sent}) == 3
    # Nothing is left to look at.
    await pump.poll(after=10**6)
    assert len(sender.sent) == 3
    assert all("GSI1PK" not in item for item in await items_of(hf, "o-1"))


async def test_a_failed_run_that_is_retried_is_told_again(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL, events=["run.failed"])
    await start(hf, "o-1", fails=True)
    await pump.poll(after=2)
    assert sender.told("o-1") == ["run.failed"]
    await pump.poll(after=100)
    assert sender.told("o-1") == ["run.failed"]
    async with hf.worker([orders]):
        await hf.run("o-1").retry()
        with pytest.raises(RunFailed):
            await hf.run("o-1").result()
    await pump.nudge(hf, "o-1")
    assert sender.told("o-1") == ["run.failed", "run.failed"]
    assert len({message.id for _, message in sender.sent}) == 2
    await pump.poll(after=3600 * 24 * 8)  # it has expired, and cannot be retried any more
    await pump.poll(after=3600)
    assert sender.told("o-1") == ["run.failed", "run.failed"]


async def test_only_wanted_events_and_graphs_are_told(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL, events=["run.finished"])
    await hf.webhooks.add("https://other.example", graph="another")
    await start(hf, "o-1")
    await pump.poll(after=2)
    assert sender.sent == []
    await finish(hf, "o-1")
    await pump.nudge(hf, "o-1")
    assert [url for url, _ in sender.sent] == [URL]


async def test_tenants_are_apart(hf: Holdfast, pump: Pump, sender: FakeSender) -> None:
    await hf.webhooks.add(URL, tenant="acme")
    await start(hf, "o-1")
    await pump.poll(after=2)
    assert sender.sent == []
    assert await hf.webhooks.list() == []
    (webhook,) = await hf.webhooks.list(tenant="acme")
    for act in (hf.webhooks.get, hf.webhooks.remove, hf.webhooks.deliveries, hf.webhooks.test):
        with pytest.raises(WebhookNotFound):
            await act(webhook.id)


async def test_a_cancelled_and_an_expired_run_are_told(
    hf: Holdfast, pump: Pump, sender: FakeSender, clock: ManualClock
) -> None:
    await hf.webhooks.add(URL, events=["run.cancelled", "run.expired"])
    await start(hf, "o-1")
    await start(hf, "o-2")
    async with hf.worker([orders]):
        await hf.run("o-1").cancel("enough")
        await hf.run("o-1").until("cancelled")
    clock.advance(3600 * 24 * 8)
    async with hf.worker([orders]):
        await hf.run("o-2").until("expired")
    await pump.poll(after=3600)
    assert sender.told("o-1") == ["run.cancelled"]
    assert sender.told("o-2") == ["run.expired"]


async def test_a_run_in_a_session_is_followed(hf: Holdfast, pump: Pump, sender: FakeSender) -> None:
    await hf.webhooks.add(URL, events=["run.paused"])
    async with hf.worker([orders]):
        run = await hf.start(orders, Order(), id="o-1", session="s")
        await run.until("waiting")
        await hf.start(orders, Order(), id="o-2", session="s")
    await pump.poll(after=2)
    assert sender.told("o-1") == ["run.paused"]
    assert sender.told("o-2") == []  # it waits for its turn, and has not begun


async def test_a_run_in_memory_is_followed_when_it_pauses(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL)
    async with hf.worker([orders]):
        await hf.start(orders, Order(), id="o-1", durability="on_pause")
    await pump.poll(after=2)
    assert sender.told("o-1") == ["run.started", "run.paused"]


async def test_a_run_in_memory_is_not_lost_if_the_webhooks_cannot_be_read_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [Throttled("busy"), Throttled("busy")]

    async def fail_twice(kernel: Kernel, tenant: str) -> Any:
        if errors:
            raise errors.pop()
        return await list_subscriptions(kernel, tenant)

    monkeypatch.setattr("holdfast.engine.runs.webhook_watch.list_subscriptions", fail_twice)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf, hf.worker([orders]):
        await hf.webhooks.add(URL)
        run = await hf.start(orders, Order(), id="o-1", durability="on_pause")
        assert (await run.get()).status == "waiting"
        assert errors == []
        assert len(await items_of(hf, "o-1")) == 1


async def test_a_store_without_webhooks_pays_nothing(hf: Holdfast) -> None:
    await start(hf, "o-1")
    assert "webhook" not in hf.meter.report().by_purpose()


# --- failures -------------------------------------------------------------------------------------


async def test_a_failed_attempt_is_repeated_with_the_same_id(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    added = await hf.webhooks.add(URL, events=["run.paused"])
    await start(hf, "o-1")
    sender.outcome = lambda *_: SendOutcome("status 500")
    await pump.poll(after=2)
    (delivery,) = await hf.webhooks.deliveries(added.webhook.id)
    assert (delivery.state, delivery.attempts, delivery.error) == ("failing", 1, "status 500")
    await pump.poll(after=1)
    assert len(sender.sent) == 1
    await pump.poll(after=5)
    sender.outcome = lambda *_: SendOutcome("")
    await pump.poll(after=11)
    assert len(sender.sent) == 3
    assert len({message.id for _, message in sender.sent}) == 1
    (delivery,) = await hf.webhooks.deliveries(added.webhook.id)
    assert (delivery.state, delivery.attempts, delivery.error) == ("delivered", 0, None)


async def test_after_three_days_a_message_is_given_up(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    added = await hf.webhooks.add(URL, events=["run.paused", "run.finished"])
    await start(hf, "o-1")
    sender.outcome = lambda *_: SendOutcome("status 500")
    await pump.poll(after=2)
    for _ in range(60):
        await pump.poll(after=3601)
        await pump.poll(after=301)  # the rest of a receiver that fails
    assert (await hf.webhooks.deliveries(added.webhook.id))[0].state == "failing"
    for _ in range(10):
        await pump.poll(after=3601)
        await pump.poll(after=301)
    (delivery,) = await hf.webhooks.deliveries(added.webhook.id)
    assert delivery.state == "failed"
    count = len(sender.sent)
    sender.outcome = lambda *_: SendOutcome("")
    await finish(hf, "o-1")
    await pump.nudge(hf, "o-1")
    await pump.poll(after=400)
    assert [message.type for _, message in sender.sent[count:]] == ["run.finished"]


async def test_a_new_event_gets_all_the_time_for_its_own_attempts(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    added = await hf.webhooks.add(URL, events=["run.paused", "run.finished"])
    await start(hf, "o-1")
    sender.outcome = lambda *_: SendOutcome("status 500")
    await pump.poll(after=2)
    await pump.poll(after=3600 * 71)
    await finish(hf, "o-1")
    await pump.poll(after=3600 * 2)
    (delivery,) = await hf.webhooks.deliveries(added.webhook.id)
    assert (delivery.event, delivery.state, delivery.attempts) == ("run.finished", "failing", 1)


async def test_a_410_disables_the_webhook(hf: Holdfast, pump: Pump, sender: FakeSender) -> None:
    added = await hf.webhooks.add(URL)
    sender.outcome = lambda *_: SendOutcome("status 410", gone=True)
    await start(hf, "o-1")
    await pump.poll(after=2)
    assert len(sender.sent) == 1
    assert (await hf.webhooks.get(added.webhook.id)).disabled_at is not None
    await start(hf, "o-2")
    await pump.poll(after=3600)
    assert len(sender.sent) == 1
    assert await items_of(hf, "o-2") == []


async def test_a_removed_webhook_gets_nothing(hf: Holdfast, pump: Pump, sender: FakeSender) -> None:
    added = await hf.webhooks.add(URL)
    await start(hf, "o-1")
    await hf.webhooks.remove(added.webhook.id)
    await pump.poll(after=2)
    assert sender.sent == []
    assert await items_of(hf, "o-1") == []
    with pytest.raises(WebhookNotFound):
        await hf.webhooks.remove(added.webhook.id)


async def test_a_dead_receiver_does_not_hold_up_another(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL, events=["run.paused"])
    await hf.webhooks.add("https://fine.example", events=["run.paused"])
    for number in range(20):
        await start(hf, f"o-{number}")
    sender.outcome = lambda url, _: SendOutcome("status 500" if url == URL else "")
    await pump.poll(after=2)
    for _ in range(6):
        await pump.poll(after=1)
    fine = [message for url, message in sender.sent if url != URL]
    assert len({message.id for message in fine}) == 20
    # After a few failures the dead one is left alone, whatever is due to it.
    assert len([url for url, _ in sender.sent if url == URL]) <= 12


async def test_a_long_backlog_of_a_slow_receiver_does_not_hold_up_another(
    hf: Holdfast, pump: Pump, sender: FakeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.webhooks.deliverer._PAGES_MAX", 1)
    monkeypatch.setattr("holdfast.webhooks.deliverer._PAGE_ITEMS", 2)
    slow = await hf.webhooks.add("https://slow.example", tenant="slow")
    await hf.webhooks.add(URL)
    for number in range(40):
        await hf.start(orders, Order(), id=f"s-{number}", tenant="slow")
    pump.skip(0.1)
    await hf.start(orders, Order(), id="o-1")
    pump.skip(2)
    with ExitStack() as busy:
        for _ in range(4):  # requests that the slow receiver has not answered yet
            busy.enter_context(pump.deliverer._targets.attempt(slow.webhook.id))
        for _ in range(20):
            await pump.poll()
    assert [url for url, _ in sender.sent] == [URL]
    for _ in range(60):
        await pump.poll(after=1)
    assert len(sender.sent) == 41


async def test_one_receiver_gets_few_requests_at_once(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL, events=["run.paused"])
    for number in range(10):
        await start(hf, f"o-{number}")
    sender.gate = asyncio.Event()
    pump._clock.advance(2)
    await pump.deliverer._poll()
    while len(sender.sent) < 4:
        await asyncio.wait(list(pump.deliverer._tasks.values()), timeout=0.05)
    sender.gate.set()
    await pump.settle()
    for _ in range(5):
        await pump.poll(after=3)
    assert len({message.id for _, message in sender.sent}) == 10
    assert sender.active_max <= 4


async def test_two_deliverers_do_not_send_the_same_message_at_once(
    hf: Holdfast, pump: Pump, sender: FakeSender, clock: ManualClock
) -> None:
    await hf.webhooks.add(URL, events=["run.paused"])
    await start(hf, "o-1")
    other = Pump(hf, sender, clock)
    sender.gate = asyncio.Event()
    clock.advance(2)
    await pump.deliverer._poll()
    while not sender.sent:
        await asyncio.wait(list(pump.deliverer._tasks.values()), timeout=0.05)
    await other.poll()
    await other.nudge(hf, "o-1")
    assert len(sender.sent) == 1
    # The first process dies in the middle: its lease ends, and the message is sent again.
    for task in list(pump.deliverer._tasks.values()):
        task.cancel()
    sender.gate = None
    await other.poll(after=31)
    assert len(sender.sent) == 2
    assert sender.sent[0][1].id == sender.sent[1][1].id


async def test_a_start_that_died_before_the_row_leaves_nothing(
    hf: Holdfast, pump: Pump, sender: FakeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hf.webhooks.add(URL)

    def die(*_: Any, **__: Any) -> Any:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.engine.runs.starting.create_write", die)
        with pytest.raises(RuntimeError, match="killed"):
            await hf.start(orders, Order(), id="o-1")
    assert len(await items_of(hf, "o-1")) == 1
    await pump.poll(after=2)
    assert len(await items_of(hf, "o-1")) == 1  # the start may still be under way
    await pump.poll(after=400)
    assert await items_of(hf, "o-1") == []
    assert sender.sent == []


async def test_a_lost_nudge_delays_but_loses_nothing(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL)
    await start(hf, "o-1")
    await pump.poll(after=2)
    await finish(hf, "o-1")
    await pump.poll(after=16)
    assert sender.told("o-1") == ["run.started", "run.paused", "run.finished"]


async def test_a_nudge_survives_an_error_of_the_store(
    hf: Holdfast, pump: Pump, sender: FakeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hf.webhooks.add(URL)
    await start(hf, "o-1")
    await pump.poll(after=2)
    for _ in range(12):  # nothing is new, so the next look is in an hour
        await pump.poll(after=3601)
    await finish(hf, "o-1")

    async def throttle(*_: Any, **__: Any) -> Any:
        raise Throttled("busy")

    for place in (
        "holdfast.webhooks.deliverer.list_subscriptions",
        "holdfast.webhooks.deliverer.read_row",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, throttle)
            with suppress(Throttled):
                await pump.nudge(hf, "o-1")
            await pump.settle()
        assert sender.told("o-1") == ["run.started", "run.paused"]
    await pump.poll(after=1)
    assert sender.told("o-1") == ["run.started", "run.paused", "run.finished"]


async def test_looks_become_rare_while_nothing_changes(
    hf: Holdfast, pump: Pump, clock: ManualClock
) -> None:
    await hf.webhooks.add(URL, events=["run.finished"])
    async with hf.worker([orders]):
        await (await hf.start(orders, Order(), id="o-1", expires=days(30))).until("waiting")
    before = hf.meter.report().by_purpose()["webhook"].writes
    for _ in range(24 * 60):
        await pump.poll(after=60)
    writes = hf.meter.report().by_purpose()["webhook"].writes - before
    assert writes < 40 * 4


async def test_a_damaged_item_is_left_alone(hf: Holdfast, pump: Pump, sender: FakeSender) -> None:
    added = await hf.webhooks.add(URL)
    await start(hf, "o-1")
    await start(hf, "o-2")
    (item,) = await items_of(hf, "o-1")
    kernel = kernel_of(hf)
    damaged = {name: value for name, value in item.items() if name != TOKEN}
    listed = {"GSI2PK": deliveries_partition("default", added.webhook.id), "GSI2SK": "1#o-1#g"}
    await kernel.webhook_items.write(Put({**damaged, **listed, "show": {"nothing": 1}}, None))
    await pump.poll(after=2)
    assert sender.told("o-1") == []
    assert sender.told("o-2") == ["run.started", "run.paused"]
    assert [each.run for each in await hf.webhooks.deliveries(added.webhook.id)] == ["o-2"]


async def test_an_item_that_is_postponed_outlives_its_run(
    hf: Holdfast, pump: Pump, sender: FakeSender
) -> None:
    await hf.webhooks.add(URL, events=["run.paused", "run.finished"])
    async with hf.worker([orders]):
        await (await hf.start(orders, Order(), id="o-1", expires=days(60))).until("waiting")
    await pump.poll(after=2)
    (item,) = await items_of(hf, "o-1")
    await pump.poll(after=3600 * 24 * 20)
    for _ in range(5):  # the receiver fails, and is left alone for a while
        pump.deliverer._targets.note(item["show"]["webhook"], pump.now, failed=True)
    await finish(hf, "o-1")
    await pump.nudge(hf, "o-1")
    assert sender.told("o-1") == ["run.paused"]
    (postponed,) = await items_of(hf, "o-1")
    assert postponed["ttl"] >= item["ttl"]
    await pump.poll(after=60)
    assert sender.told("o-1") == ["run.paused", "run.finished"]


async def test_a_damaged_row_is_not_looked_at_every_second(
    hf: Holdfast, pump: Pump, sender: FakeSender, caplog: pytest.LogCaptureFixture
) -> None:
    await hf.webhooks.add(URL)
    await start(hf, "o-1")
    await start(hf, "o-2")
    kernel = kernel_of(hf)
    row = await kernel.heads.get(hf.run("o-1")._key.head)
    assert row is not None
    damaged = {name: value for name, value in row.items() if name != TOKEN}
    await kernel.heads.write(Put({**damaged, "status": 7}, None))
    before = hf.meter.report().by_purpose()["head"].reads
    for _ in range(30):
        await pump.poll(after=1)
    assert not [line for line in caplog.messages if "not handled" in line]
    assert hf.meter.report().by_purpose()["head"].reads - before < 10
    assert sender.told("o-2") == ["run.started", "run.paused"]
    await kernel.heads.write(Put({**damaged}, None))  # an operator has repaired it
    await pump.poll(after=2 * 3600)
    assert sender.told("o-1") == ["run.started", "run.paused"]


# --- subscriptions --------------------------------------------------------------------------------


async def test_a_webhook_whose_addition_was_cut_short_is_followed_or_absent(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of(hf)
    resolve, written = kernel.resolve_write, 0

    async def die_after_one(table: Any, write: Any, **options: Any) -> Any:
        nonlocal written
        written += 1
        if written > 1:
            raise Throttled("busy")
        return await resolve(table, write, **options)

    await kernel.get_settings()
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "resolve_write", die_after_one)
        with pytest.raises(Throttled):
            await hf.webhooks.add(URL)
    stored = await kernel.settings_table.get(SETTINGS)
    assert stored is not None
    assert not await hf.webhooks.list() or stored.get("webhooks")


async def test_settings_that_were_read_late_do_not_hide_the_webhooks(hf: Holdfast) -> None:
    kernel = kernel_of(hf)
    late = await kernel.get_settings()
    await hf.webhooks.add(URL)
    assert kernel.has_webhooks
    kernel.adopt_settings(late)
    assert kernel.has_webhooks


async def test_a_secret_is_shown_once(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    added = await hf.webhooks.add(URL)
    assert added.secret.startswith("whsec_")
    (listed,) = await hf.webhooks.list()
    assert listed == added.webhook == await hf.webhooks.get(added.webhook.id)
    for shown in (repr(added), str(listed.as_dict()), repr(listed), caplog.text):
        assert added.secret not in shown
    given = "whsec_" + "QUFB" * 10
    assert (await hf.webhooks.add(URL, secret=given)).secret == given


@pytest.mark.parametrize("secret", ["", "x", "whsec_", "whsec_AAAA", "whsec_" + "é" * 40, 5])
async def test_a_wrong_secret(hf: Holdfast, secret: Any) -> None:
    with pytest.raises(InvalidRequest, match="secret must be 'whsec_'") as refused:
        await hf.webhooks.add(URL, secret=secret)
    assert "AAAA" not in str(refused.value)


@pytest.mark.parametrize("events", [[], ["run.nothing"], "run.failed", None, 5, [["x"]]])
async def test_wrong_events(hf: Holdfast, events: Any) -> None:
    with pytest.raises(InvalidRequest, match="events must be a list of"):
        await hf.webhooks.add(URL, events=events)


@pytest.mark.parametrize("url", ["http://hooks.example", "https://127.0.0.1", "x", 5])
async def test_a_wrong_target(hf: Holdfast, url: Any) -> None:
    with pytest.raises(TargetRefused):
        await hf.webhooks.add(url)


async def test_the_number_of_webhooks_is_limited(hf: Holdfast) -> None:
    for _ in range(50):
        await hf.webhooks.add(URL)
    with pytest.raises(InvalidRequest, match="more than 50 webhooks"):
        await hf.webhooks.add(URL)


async def test_a_test_message(hf: Holdfast, pump: Pump, sender: FakeSender) -> None:
    added = await hf.webhooks.add(URL)
    pending = await hf.webhooks.test(added.webhook.id, max_wait=0)
    assert pending.state == "pending"
    await pump.poll()
    assert [message.type for _, message in sender.sent] == ["webhook.test"]
    sender.outcome = lambda *_: SendOutcome("status 404")
    await hf.webhooks.test(added.webhook.id, max_wait=0)
    await pump.poll()
    states = [each.state for each in await hf.webhooks.deliveries(added.webhook.id)]
    assert sorted(states) == ["delivered", "failed"]
    for delivery in await hf.webhooks.deliveries(added.webhook.id):
        pump.deliverer._on_released(RunKey("default", delivery.run), "test")
    await pump.poll(after=10**5)
    assert len(sender.sent) == 2  # a test is not repeated
