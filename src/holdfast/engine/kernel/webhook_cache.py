"""The webhooks of tenants as this process last read them, and who wants to know of run changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.records.keys import RunKey
from holdfast.records.webhook import Subscription

__all__ = ["RunListener", "WebhookCache"]

RunListener: TypeAlias = Callable[[RunKey, str], None]
"""Gets a run and its generation."""

_TENANTS_MAX = 1_000


class WebhookCache:
    """Webhooks by tenant, and the listeners of this process."""

    def __init__(self) -> None:
        self._listeners: list[RunListener] = []
        self._known: OrderedDict[str, tuple[float, tuple[Subscription, ...]]] = OrderedDict()

    def get(
        self, tenant: str, *, now: float, seconds_old_max: float
    ) -> tuple[Subscription, ...] | None:
        """Return the webhooks of a tenant; None if they must be read."""
        read_at, found = self._known.get(tenant, (0.0, None))
        return None if found is None or now - read_at >= seconds_old_max else found

    def keep(self, tenant: str, found: tuple[Subscription, ...], *, now: float) -> None:
        """Keep the webhooks of a tenant that were read now."""
        self._known[tenant] = (now, found)
        self._known.move_to_end(tenant)
        if len(self._known) > _TENANTS_MAX:
            self._known.popitem(last=False)

    def forget(self, tenant: str) -> None:
        """Let the webhooks of a tenant be read again."""
        self._known.pop(tenant, None)

    @contextmanager
    def listen(self, listener: RunListener) -> Generator[None]:
        """Call a listener whenever a worker of this process has released a run."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def notify(self, run: RunKey, generation: str) -> None:
        """Tell the listeners that a run has paused or ended."""
        for listener in self._listeners:
            listener(run, generation)
