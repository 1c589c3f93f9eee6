"""Stores JSON and images of one document beside the table, and reads them back.

The name of a blob has the digest of its content. So a step that runs again, or runs twice because
a worker stalled, writes the same blobs, and never another content under a known name.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

__all__ = ["Blobs", "Shelf", "load_json"]


class Blobs(Protocol):
    """What a shelf needs of ``hf.documents.files``."""

    async def put_blob(
        self,
        data: bytes,
        *,
        name: str,
        document: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
    ) -> str:
        """Store a blob, and return its address."""
        ...

    async def read_blob(self, uri: str, *, tenant: str | None = None) -> bytes:
        """Return the content of a blob."""
        ...


class Shelf:
    """The blobs of one workflow of a document."""

    def __init__(self, files: Blobs, *, tenant: str, prefix: str, workflow: str) -> None:
        self._files, self._tenant = files, tenant
        self._prefix, self._workflow = prefix, workflow

    async def put(self, name: str, value: Any) -> str:
        """Store a value as JSON, and return its address."""
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        return await self.put_bytes(name, data, "json")

    async def put_bytes(self, name: str, data: bytes, ending: str) -> str:
        """Store bytes, and return their address."""
        digest = hashlib.sha256(data).hexdigest()[:16]
        return await self._files.put_blob(
            data,
            name=f"{self._workflow}/{name}-{digest}.{ending}",
            prefix=self._prefix,
            tenant=self._tenant,
        )

    async def load(self, uri: str) -> Any:
        """Return a value that was stored as JSON."""
        return await load_json(self._files, uri, tenant=self._tenant)

    async def load_bytes(self, uri: str) -> bytes:
        """Return bytes that were stored."""
        return await self._files.read_blob(uri, tenant=self._tenant)


async def load_json(files: Blobs, uri: str, *, tenant: str) -> Any:
    """Return a value that a shelf stored as JSON."""
    return json.loads(await files.read_blob(uri, tenant=tenant))
