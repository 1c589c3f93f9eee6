"""Delivers webhooks: looks at the rows of followed runs, and posts what is new.

A process leases an item before it posts, and writes what became of it afterwards. If the process
dies between the two, another one posts the same message again when the lease has ended: a message
arrives at least once, and its id tells a repeat.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from holdfast.display import get_logger
from holdfast.engine.history.views import run_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.webhook_watch import list_subscriptions
from holdfast.engine.worker.tasks import sleep_or_wake
from holdfast.errors import (
    ConditionFailed,
    HoldfastError,
    ItemDamaged,
    JournalDamaged,
    RunNotFound,
    StoreClosed,
    StoreError,
)
from holdfast.model.send_retries import gives_up, next_retry_ms
from holdfast.records.head import ENDED, TROUBLED, Head
from holdfast.records.index_keys import due_by
from holdfast.records.keys import HEAD, RunKey
from holdfast.records.webhook import Subscription, disable_webhook_write
from holdfast.records.webhook_delivery import (
    DELIVERY_SHARDS,
    Delivery,
    deliveries_range,
    delivery_key_of,
    delivery_of,
    delivery_write,
    drop_delivery_write,
    due_partition,
)
from holdfast.storage import Key
from holdfast.webhooks.messages import WebhookMessage, message_of, next_event, test_message
from holdfast.webhooks.schedule import (
    DAMAGED_MS,
    LEASE_MS,
    ORPHAN_MS,
    next_look_ms,
)
from holdfast.webhooks.sending import Sender, SendOutcome
from holdfast.webhooks.targets import Targets

__all__ = ["Deliverer"]

_log = get_logger("holdfast.webhooks")

_POLL_SECONDS = 1.0
# How often a process looks whether the store has webhooks at all.
_IDLE_SECONDS = 15.0
_PAGE_ITEMS = 100
_PAGES_MAX = 10
_CONCURRENCY_MAX = 32
_NUDGES_MAX = 1_000
# How long attempts may go on when the process stops; then others repeat them after the lease.
_STOP_SECONDS = 3.0
# How old the list of a tenant's webhooks may be.
_LIST_SECONDS = 5.0


class Deliverer:
    """Delivers the webhooks of all tenants of a store, beside others that do the same."""

    def __init__(self, kernel: Kernel, sender: Sender, *, attempts: Counter[str]) -> None:
        """``attempts`` counts the messages that were posted, by outcome."""
        self._kernel = kernel
        self._attempts = attempts
        self._sender = sender
        self._targets = Targets()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        # Items to handle again when the task that handles them now has ended.
        self._again: set[Key] = set()
        self._nudged: dict[tuple[RunKey, str], None] = {}
        # Items that were not handled because the store failed: their next look may be far away.
        self._unhandled: dict[Key, None] = {}
        self._cursors: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Deliverer:
        self._loop = asyncio.create_task(self._run(), name="holdfast webhooks")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._wake.set()
        if self._loop is not None:
            await asyncio.wait([self._loop, *self._tasks.values()], timeout=_STOP_SECONDS)
            left = (self._loop, *self._tasks.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # --- what is due ------------------------------------------------------------------------------

    async def _run(self) -> None:
        with self._kernel.webhooks.listen(self._on_released):
            while not self._stopping:
                seconds = _IDLE_SECONDS
                try:
                    settings = await self._kernel.get_settings(seconds_old_max=_IDLE_SECONDS)
                    if settings.webhooks:
                        seconds = _POLL_SECONDS
                        await self._poll()
                except StoreClosed:
                    return
                except HoldfastError as error:
                    _log.warning("webhooks cannot be delivered, and are tried again: %s", error)
                except Exception:
                    _log.exception("webhooks cannot be delivered, and are tried again")
                await self._sleep(seconds)

    def _on_released(self, run: RunKey, generation: str) -> None:
        """Look at a run that a worker of this process has just paused or ended."""
        if self._kernel.has_webhooks and len(self._nudged) < _NUDGES_MAX:
            self._nudged[run, generation] = None
            self._wake.set()

    async def _sleep(self, seconds: float) -> None:
        await sleep_or_wake(self._kernel.clock, seconds, self._wake)
        self._wake.clear()

    async def _poll(self) -> None:
        unhandled, self._unhandled = self._unhandled, {}
        for key in unhandled:
            await self._begin(key)
        for run, generation in list(self._nudged):
            del self._nudged[run, generation]
            try:
                await self._begin_of_run(run, generation)
            except StoreError:
                self._nudged[run, generation] = None
                raise
        for shard in range(DELIVERY_SHARDS):
            await self._begin_due(due_partition(shard))

    async def _begin_of_run(self, run: RunKey, generation: str) -> None:
        if await list_subscriptions(self._kernel, run.tenant):
            found = self._kernel.webhook_items.query_all(run.pk, deliveries_range(generation))
            async for item in found:
                await self._begin(Key(item["PK"], item["SK"]))

    async def _begin_due(self, partition: str) -> None:
        # Where the last poll stopped: at the front may be many items of a receiver without room.
        now, cursor = due_by(self._kernel.clock.now_ms()), self._cursors.pop(partition, None)
        for _ in range(_PAGES_MAX):
            page = await self._kernel.webhook_items.query(
                partition, now, index="GSI1", limit=_PAGE_ITEMS, cursor=cursor
            )
            for entry in page.items:
                try:
                    key = delivery_key_of(entry)
                except ValueError as error:
                    self._kernel.note_damage(entry, error)
                else:
                    if self._targets.has_room(key.sk.rpartition("#")[2]):
                        await self._begin(key)
            cursor = page.cursor
            if cursor is None or self._stopping:
                return
        if cursor is not None:
            self._cursors[partition] = cursor

    async def _begin(self, key: Key) -> None:
        """Handle an item in a task of its own, when there is room for one."""
        while len(self._tasks) >= _CONCURRENCY_MAX and not self._stopping:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        if key in self._tasks:
            self._again.add(key)  # the run may have changed since the task read its row
        elif not self._stopping:
            task = asyncio.create_task(self._handle(key), name=f"holdfast webhook {key.sk}")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    # --- one item ---------------------------------------------------------------------------------

    async def _handle(self, key: Key) -> None:
        try:
            self._again.add(key)
            while key in self._again:
                self._again.discard(key)
                with suppress(ConditionFailed):  # another process has changed the item
                    await self._follow(key)
        except StoreClosed:
            return
        except HoldfastError as error:
            run = RunKey.parsed(key.pk)
            _log.warning("%s: the webhook item %s was not handled: %s", run.log_name, key.sk, error)
            if isinstance(error, StoreError) and len(self._unhandled) < _NUDGES_MAX:
                self._unhandled[key] = None
        except Exception:
            run = RunKey.parsed(key.pk)
            _log.exception("%s: the webhook item %s was not handled", run.log_name, key.sk)

    async def _follow(self, key: Key) -> None:
        """Tell the webhook all that is new; then note when to look again."""
        item = await self._kernel.webhook_items.get(key)
        while item is not None and not self._stopping:
            try:
                delivery = delivery_of(item)
            except JournalDamaged as error:
                self._kernel.note_damage(item, error)
                return
            if delivery.leased_ms > self._kernel.clock.now_ms():
                return
            item = await self._step(item, delivery)

    async def _step(self, item: Mapping[str, Any], delivery: Delivery) -> dict[str, Any] | None:
        """Take one step; return the item if another step may follow at once."""
        now_ms = self._kernel.clock.now_ms()
        webhook = await self._find_webhook(delivery)
        if webhook is None or not webhook.is_active:
            await self._drop(item)
            return None
        if delivery.is_test:
            if delivery.state == "pending":
                await self._step_test(item, delivery, webhook)
            return None
        try:
            head = await self._read_run(delivery)
        except (ItemDamaged, JournalDamaged) as error:  # until an operator repairs the row
            self._kernel.note_damage({"PK": delivery.key.pk, "SK": HEAD}, error)
            await self._postpone(item, delivery, DAMAGED_MS)
            return None
        if head is None:
            if now_ms - delivery.created_ms > ORPHAN_MS:
                await self._drop(item)
            else:
                await self._postpone(item, delivery, ORPHAN_MS // 10)
            return None
        event = next_event(delivery, webhook, head, now_ms=now_ms)
        if event is None:
            await self._write(item, self._parked(delivery, head), head.ttl)
            return None
        user = await self._kernel.bind_user_hash(head)
        message = message_of(delivery, event, run_of(head, user=user, now_ms=now_ms))
        sent = await self._send(item, delivery, webhook, message, run_ttl=head.ttl)
        if sent is None:
            return None
        leased, outcome = sent
        known = {"looks": 0, "started": True} | ({} if event.is_start else {"seen": event.mark})
        after = self._after(delivery_of(leased), outcome, known)
        if after.state == "failing":
            await self._write(leased, after, head.ttl)
            return None
        if next_event(after, webhook, head, now_ms=now_ms) is None:
            await self._write(leased, self._parked(after, head), head.ttl)
            return None
        due = msgspec.structs.replace(after, due_ms=self._kernel.clock.now_ms())
        return await self._write(leased, due, head.ttl)

    async def _step_test(
        self, item: Mapping[str, Any], delivery: Delivery, webhook: Subscription
    ) -> None:
        sent = await self._send(item, delivery, webhook, test_message(delivery), run_ttl=0)
        if sent is not None:
            leased, outcome = sent
            after = self._after(delivery_of(leased), outcome, {})
            state = "failed" if outcome.error else "delivered"
            await self._write(leased, msgspec.structs.replace(after, state=state, due_ms=None), 0)

    async def _send(
        self,
        item: Mapping[str, Any],
        delivery: Delivery,
        webhook: Subscription,
        message: WebhookMessage,
        *,
        run_ttl: int,
    ) -> tuple[dict[str, Any], SendOutcome] | None:
        """Lease the item and make one attempt; None if the receiver is left alone for now."""
        clock = self._kernel.clock
        rest = self._targets.rest_seconds(webhook.id, clock.monotonic())
        if (rest or not self._targets.has_room(webhook.id)) and not delivery.is_test:
            await self._postpone(item, delivery, round(max(rest, 1.0) * 1000))
            return None
        with self._targets.attempt(webhook.id):  # counted before the lease, which takes a while
            lease_ms = clock.now_ms() + LEASE_MS
            if delivery.message != message.id:
                delivery = msgspec.structs.replace(
                    delivery, message=message.id, event=message.type, attempts=0, failing_ms=0
                )
            claimed = msgspec.structs.replace(delivery, leased_ms=lease_ms, due_ms=lease_ms)
            leased = await self._write(item, claimed, run_ttl)
            outcome = await self._sender.send(
                webhook.url, webhook.secret, message, now_ms=clock.now_ms()
            )
        self._targets.note(webhook.id, clock.monotonic(), failed=bool(outcome.error))
        self._attempts["failed" if outcome.error else "delivered"] += 1
        if outcome.gone:
            await self._disable(webhook)
        return leased, outcome

    def _after(self, delivery: Delivery, outcome: SendOutcome, known: dict[str, Any]) -> Delivery:
        """Return the item after an attempt; ``known`` is what changes if no other one follows."""
        now_ms = self._kernel.clock.now_ms()
        if not outcome.error:
            return msgspec.structs.replace(
                delivery, state="delivered", attempts=0, failing_ms=0, error="", leased_ms=0,
                updated_ms=now_ms, **known,
            )  # fmt: skip
        failing_ms = delivery.failing_ms or now_ms
        failed = msgspec.structs.replace(
            delivery, attempts=delivery.attempts + 1, failing_ms=failing_ms, error=outcome.error,
            leased_ms=0, updated_ms=now_ms,
        )  # fmt: skip
        if outcome.gone or gives_up(failing_ms, now_ms):
            _log.error(
                "%s: webhook %s was not told %s: %s",
                delivery.key.log_name, delivery.webhook, delivery.event, outcome.error,
            )  # fmt: skip
            return msgspec.structs.replace(failed, state="failed", failing_ms=0, **known)
        due_ms = next_retry_ms(failed.attempts, now_ms, self._kernel.ids.random())
        return msgspec.structs.replace(failed, state="failing", due_ms=due_ms)

    def _parked(self, delivery: Delivery, head: Head) -> Delivery:
        """Return an item for which there is nothing new, with the time of the next look."""
        now_ms = self._kernel.clock.now_ms()
        # A run that has failed may be retried until it expires.
        is_over = head.status in ENDED and (
            head.status not in TROUBLED or now_ms >= head.expires_ms
        )
        looks = delivery.looks + 1
        return msgspec.structs.replace(
            delivery, looks=looks, leased_ms=0,
            due_ms=None if is_over else next_look_ms(looks, now_ms, self._kernel.ids.random()),
        )  # fmt: skip

    # --- the store --------------------------------------------------------------------------------

    async def _read_run(self, delivery: Delivery) -> Head | None:
        """Return the row of a run; None if there is none yet, or no more."""
        try:
            head = await read_row(self._kernel, delivery.key)
        except RunNotFound:
            return None
        return head if head.generation == delivery.generation else None

    async def _find_webhook(self, delivery: Delivery) -> Subscription | None:
        """Return the webhook of an item; None if it was removed."""
        for seconds_old_max in (_LIST_SECONDS, 0.0):  # another process may have added it just now
            webhooks = await list_subscriptions(
                self._kernel, delivery.tenant, seconds_old_max=seconds_old_max
            )
            for webhook in webhooks:
                if webhook.id == delivery.webhook:
                    return webhook
        return None

    async def _drop(self, item: Mapping[str, Any]) -> None:
        await self._kernel.resolve_write(self._kernel.webhook_items, drop_delivery_write(item))

    async def _postpone(self, item: Mapping[str, Any], delivery: Delivery, by_ms: int) -> None:
        jitter = 1 + self._kernel.ids.random() / 2
        due_ms = self._kernel.clock.now_ms() + round(by_ms * jitter)
        await self._write(item, msgspec.structs.replace(delivery, due_ms=due_ms), 0)

    async def _write(
        self, item: Mapping[str, Any], changed: Delivery, run_ttl: int
    ) -> dict[str, Any]:
        write = delivery_write(changed, item, run_ttl=run_ttl, token=self._kernel.ids.new())
        return await self._kernel.resolve_write(self._kernel.webhook_items, write)

    async def _disable(self, webhook: Subscription) -> None:
        write = disable_webhook_write(
            webhook.tenant,
            webhook.id,
            now_ms=self._kernel.clock.now_ms(),
            token=self._kernel.ids.new(),
        )
        with suppress(ConditionFailed):  # it was removed meanwhile
            await self._kernel.resolve_write(self._kernel.webhook_items, write)
        self._kernel.webhooks.forget(webhook.tenant)
        _log.warning(
            "webhook %s of tenant %s is disabled, because its receiver answered 410",
            webhook.id,
            webhook.tenant,
        )
