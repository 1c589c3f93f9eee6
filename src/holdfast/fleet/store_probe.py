"""Uses a store as runs do: reads, writes and deletes an item and a blob."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.health import probe_blobs
from holdfast.errors import HoldfastError
from holdfast.fleet.diagnosis import StoreFacts
from holdfast.records.keys import SETTINGS, probe_key
from holdfast.redaction import without_credentials
from holdfast.storage import Delete, Put

__all__ = ["probe_store"]

_TTL_SECONDS = 3600


async def probe_store(kernel: Kernel) -> StoreFacts:
    """Return what happened when the store was used. It leaves nothing behind."""
    table = kernel.store.records("fleet")
    key = probe_key(kernel.ids.new())

    async def read() -> None:
        await table.get(SETTINGS)

    async def write() -> None:
        ttl = kernel.clock.now_ms() // 1000 + _TTL_SECONDS
        await table.write(Put({"PK": key.pk, "SK": key.sk, "ttl": ttl}))
        await table.write(Delete(key))

    began = kernel.clock.monotonic()
    read_error = await _error_of(read)
    took = kernel.clock.monotonic() - began
    write_error = None if read_error is not None else await _error_of(write)
    blob_error = None
    if read_error is None:
        blob_error = await _error_of(lambda: probe_blobs(kernel))
    return StoreFacts(
        url=without_credentials(kernel.store.url),
        has_blobs=kernel.store.has_blobs,
        read_error=read_error,
        write_error=write_error,
        blob_error=blob_error,
        read_ms=round(took * 1000),
    )


async def _error_of(action: Callable[[], Awaitable[None]]) -> HoldfastError | None:
    try:
        await action()
    except HoldfastError as error:
        return error
    return None
