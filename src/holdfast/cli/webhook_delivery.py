"""Delivers webhooks beside the worker of ``holdfast worker``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec

from holdfast.app import Holdfast
from holdfast.network.addresses import AllowList

__all__ = ["deliver_webhooks"]

_PACKAGES = ("httpx", "standardwebhooks")


@asynccontextmanager
async def deliver_webhooks(holdfast: Holdfast, allow: Iterable[str]) -> AsyncGenerator[None]:
    """Deliver webhooks, unless the extra ``server`` is not installed: then servers do it.

    Raises:
        InvalidRequest: an entry of the allow-list is wrong.
    """
    holdfast.webhooks.allow = AllowList(allow)
    if any(find_spec(name) is None for name in _PACKAGES):
        yield
        return
    async with holdfast.webhooks.deliver():
        yield
