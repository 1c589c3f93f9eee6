"""Whose the bucket of a table is: written down when the store is made, and demanded ever after.

The name of a bucket that was deleted is free for every account. With the owner in each request, S3
refuses the bucket of another one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from holdfast.errors import StoreNotFound
from holdfast.storage.layout import Key
from holdfast.storage.table import Table
from holdfast.storage.writes import Put

__all__ = ["BucketOwner", "OwnedBucket", "owner_key"]


class OwnedBucket(Protocol):
    """A bucket that refuses requests which name another owner."""

    bucket: str
    owner: str | None
    """The account that must have the bucket; None where no request names one."""


def owner_key(bucket: str) -> Key:
    """Return where the table keeps whose the bucket is."""
    return Key(f"BUCKET#{bucket}", "OWNER")


class BucketOwner:
    """What the table knows about the owner of a bucket."""

    def __init__(self, table: Table, bucket: OwnedBucket) -> None:
        self._table = table
        self._bucket = bucket
        self._loaded = bucket.owner is not None  # the address says it

    async def load(self) -> None:
        """Read who has the bucket, once a process; a store made before has nothing of it."""
        if self._loaded:
            return
        item = await self._table.get(owner_key(self._bucket.bucket), eventual=True)
        if item is not None:
            self._bucket.owner = item["owner"]
        self._loaded = True

    async def load_if_table_exists(self) -> None:
        """Do so before the store is made, where the table may be missing."""
        with suppress(StoreNotFound):
            await self.load()
        self._loaded = True

    async def save(self) -> None:
        """Write down who has the bucket, if that is known."""
        key, owner = owner_key(self._bucket.bucket), self._bucket.owner
        if owner is not None:
            await self._table.write(Put({"PK": key.pk, "SK": key.sk, "owner": owner}))
