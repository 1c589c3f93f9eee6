"""Lets a run be overdue, as if nothing had served it for years."""

from __future__ import annotations

import asyncio
from datetime import datetime

from holdfast.records.keys import RunKey
from holdfast.storage import Update
from holdfast.storage import open as open_store

__all__ = ["make_due"]


def make_due(moment: str, *, tenant: str = "default") -> None:
    """Let the run ``c-1`` of the store ``runs.db`` be due since a time."""

    async def write() -> None:
        async with open_store("sqlite:///runs.db") as store:
            key = RunKey(tenant, "c-1").head
            row = await store.table.get(key)
            assert row is not None
            due_ms = round(datetime.fromisoformat(moment).timestamp() * 1000)
            rest = row["GSI1SK"].partition("#")[2]
            await store.table.write(Update(key=key, set={"GSI1SK": f"{due_ms:013d}#{rest}"}))

    asyncio.run(write())
