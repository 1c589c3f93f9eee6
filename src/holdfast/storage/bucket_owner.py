"""The AWS account that owns the bucket of a table, stored when the store is created.

Any account can take the name of a deleted bucket. Each request names the owner, so that S3 refuses
it if another account owns the bucket now.
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
    """A bucket that refuses requests that name another owner."""

    bucket: str
    owner: str | None
    """The account that must own the bucket; None if requests name no account."""


def owner_key(bucket: str) -> Key:
    """Return the key under which the table stores the owner of a bucket."""
    return Key(f"BUCKET#{bucket}", "OWNER")


class BucketOwner:
    """The owner of a bucket, as the table stores it."""

    def __init__(self, table: Table, bucket: OwnedBucket) -> None:
        self._table = table
        self._bucket = bucket
        self._loaded = bucket.owner is not None  # from the store's address

    async def load(self) -> None:
        """Read the owner of the bucket, once per process; an old store may not have it."""
        if self._loaded:
            return
        item = await self._table.get(owner_key(self._bucket.bucket), eventual=True)
        if item is not None:
            self._bucket.owner = item["owner"]
        self._loaded = True

    async def load_if_table_exists(self) -> None:
        """Read the owner of the bucket, if the table exists already."""
        with suppress(StoreNotFound):
            await self.load()
        self._loaded = True

    async def save(self) -> None:
        """Store the owner of the bucket, if it is known."""
        key, owner = owner_key(self._bucket.bucket), self._bucket.owner
        if owner is not None:
            await self._table.write(Put({"PK": key.pk, "SK": key.sk, "owner": owner}))
