"""`Webhooks`: what tenants subscribed to, and what became of the deliveries."""

from __future__ import annotations

import builtins
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.engine.runs.webhook_watch import list_subscriptions
from holdfast.errors import ConditionFailed, InvalidRequest, WebhookNotFound
from holdfast.model.durations import Duration, seconds, seconds_of
from holdfast.model.names import validated_name, validated_tenant
from holdfast.model.webhook import (
    WEBHOOK_EVENTS,
    NewWebhook,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
    validated_events,
)
from holdfast.network.addresses import AllowList
from holdfast.records.settings import note_webhooks_write
from holdfast.records.webhook import (
    Subscription,
    add_webhook_write,
    remove_webhook_write,
    subscription_of,
    webhook_key,
)
from holdfast.records.webhook_delivery import (
    TEST_GENERATION,
    Delivery,
    create_delivery_write,
    deliveries_partition,
    delivery_of,
)
from holdfast.webhooks.messages import TEST_EVENT

__all__ = ["Webhooks"]

_WEBHOOKS_MAX = 50
_SECRET_PREFIX = "whsec_"
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 24, 64
_TEST_POLL_SECONDS = 0.2
_TEST_WAIT = seconds(20)


class Webhooks:
    """The webhooks of a store: events of runs that are posted to other systems."""

    def __init__(self, kernel: Kernel, tenant: str) -> None:
        self._kernel = kernel
        self._tenant = tenant
        self.allow = AllowList()
        """Addresses that are permitted although they are not public."""

    async def add(
        self,
        url: str,
        *,
        events: Iterable[WebhookEvent] = WEBHOOK_EVENTS,
        graph: str | None = None,
        tenant: str | None = None,
        secret: str | None = None,
    ) -> NewWebhook:
        """Post events of the tenant's runs to an address, from now on. The secret is shown once.

        It covers runs that are started 5 s later; after the first webhook of a store, a minute
        later. ``graph`` limits it to runs of one graph. The receiver verifies signatures with the
        ``secret``, by default a random one.

        Raises:
            TargetRefused: the address is not https, or not public.
            InvalidRequest: unknown events, a wrong secret, or too many webhooks.
            InvalidName: the graph or the tenant is not a valid name.
        """
        tenant = self._tenant_or_default(tenant)
        self.allow.check_url(url)
        kernel = self._kernel
        added = Subscription(
            id=f"wh_{kernel.ids.new().replace('-', '')}",
            tenant=tenant,
            url=url,
            events=validated_events(events),
            graph=None if graph is None else validated_name(graph, "graph"),
            secret=_new_secret(kernel.ids.key()) if secret is None else _validated_secret(secret),
            created_ms=kernel.clock.now_ms(),
        )
        there = await list_subscriptions(kernel, tenant, seconds_old_max=0.0)
        if len(there) >= _WEBHOOKS_MAX:
            raise InvalidRequest(
                f"tenant {tenant!r} must not have more than {_WEBHOOKS_MAX} webhooks: remove one",
                limit=_WEBHOOKS_MAX,
            )
        settings = await kernel.get_settings(seconds_old_max=0.0)
        if not settings.webhooks:  # first, so that no process overlooks a webhook that is there
            await kernel.resolve_write(
                kernel.settings_table, note_webhooks_write(token=kernel.ids.new())
            )
            kernel.adopt_settings(msgspec.structs.replace(settings, webhooks=True))
        await kernel.resolve_write(
            kernel.webhook_items, add_webhook_write(added, token=kernel.ids.new())
        )
        kernel.webhooks.forget(tenant)
        return NewWebhook(webhook=added.shown(), secret=added.secret)

    async def list(self, *, tenant: str | None = None) -> builtins.list[Webhook]:
        """Return the webhooks of the tenant, the oldest first.

        Raises:
            InvalidName: the tenant is not a valid name.
        """
        found = await list_subscriptions(
            self._kernel, self._tenant_or_default(tenant), seconds_old_max=0.0
        )
        return [each.shown() for each in found]

    async def get(self, id: str, *, tenant: str | None = None) -> Webhook:
        """Return a webhook.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        return (await self._load(id, self._tenant_or_default(tenant))).shown()

    async def remove(self, id: str, *, tenant: str | None = None) -> None:
        """Remove a webhook. Other processes stop to deliver to it within 5 s.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        tenant = self._tenant_or_default(tenant)
        await self._load(id, tenant)
        try:
            await self._kernel.resolve_write(
                self._kernel.webhook_items, remove_webhook_write(tenant, id)
            )
        except ConditionFailed:
            raise _not_found(id, tenant) from None
        finally:
            self._kernel.webhooks.forget(tenant)

    async def test(
        self, id: str, *, tenant: str | None = None, max_wait: Duration = _TEST_WAIT
    ) -> WebhookDelivery:
        """Let a server or worker post a message of the type ``webhook.test``; return the outcome.

        Its ``state`` is ``pending`` if no process delivered it within ``max_wait``: then none runs.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
        """
        tenant, clock = self._tenant_or_default(tenant), self._kernel.clock
        deadline = clock.monotonic() + seconds_of(max_wait, "max_wait")
        webhook = await self._load(id, tenant)
        now_ms = clock.now_ms()
        made = Delivery(
            tenant=tenant,
            run=f"test-{self._kernel.ids.new()}",
            generation=TEST_GENERATION,
            webhook=webhook.id,
            created_ms=now_ms,
            updated_ms=now_ms,
            due_ms=now_ms,
            event=TEST_EVENT,
        )
        write = create_delivery_write(made, run_ttl=0, token=self._kernel.ids.new())
        await self._kernel.resolve_write(self._kernel.webhook_items, write)
        self._kernel.webhooks.notify(made.key, made.generation)
        while True:
            item = await self._kernel.webhook_items.get(made.item_key)
            if item is None:
                raise _not_found(id, tenant)
            found = delivery_of(item)
            if found.state != "pending" or clock.monotonic() >= deadline:
                return found.shown()
            await clock.sleep(_TEST_POLL_SECONDS)

    async def deliveries(
        self, id: str, *, tenant: str | None = None, limit: int = 100
    ) -> builtins.list[WebhookDelivery]:
        """Return what became of the last message about each run, the latest first.

        Raises:
            WebhookNotFound: the tenant has no such webhook.
            InvalidQuery: the limit is not from 1 to 1,000.
        """
        tenant, limit = self._tenant_or_default(tenant), validated_limit(limit)
        await self._load(id, tenant)
        page = await self._kernel.webhook_items.query(
            deliveries_partition(tenant, id), index="GSI2", limit=limit, forward=False
        )
        return [delivery_of(item).shown() for item in page.items]

    @asynccontextmanager
    async def deliver(self) -> AsyncGenerator[None]:
        """Deliver the webhooks of all tenants in this process, until the block ends.

        ``async with hf.webhooks.deliver(): …``. A server and ``holdfast worker`` do this. It needs
        the extra ``server``.

        Raises:
            InvalidRequest: the extra is not installed.
        """
        # Here, because both need packages that the core does not have.
        try:
            from holdfast.webhooks.deliverer import Deliverer
            from holdfast.webhooks.sending import HttpSender
        except ImportError as error:
            raise InvalidRequest(
                f"deliveries need the extra server: pip install 'holdfast[server]' ({error})"
            ) from None
        async with HttpSender(self.allow) as sender, Deliverer(self._kernel, sender):
            yield

    async def _load(self, id: str, tenant: str) -> Subscription:
        name = validated_name(id, "id")
        item = await self._kernel.webhook_items.get(webhook_key(tenant, name))
        if item is None:
            raise _not_found(id, tenant)
        return subscription_of(item)

    def _tenant_or_default(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else validated_tenant(tenant)


def _not_found(id: str, tenant: str) -> WebhookNotFound:
    return WebhookNotFound(f"tenant {tenant!r} has no webhook {id!r:.80}")


def _new_secret(key: bytes) -> str:
    return _SECRET_PREFIX + b64encode(key).decode()


def _validated_secret(secret: object) -> str:
    try:
        if isinstance(secret, str) and secret.startswith(_SECRET_PREFIX):
            data = b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
            if _SECRET_BYTES_MIN <= len(data) <= _SECRET_BYTES_MAX:
                return secret
    except ValueError:
        pass
    # Without what was given: it is a secret.
    raise InvalidRequest(
        f"secret must be {_SECRET_PREFIX!r} and the base64 of {_SECRET_BYTES_MIN} to "
        f"{_SECRET_BYTES_MAX} bytes",
        field="secret",
    )
