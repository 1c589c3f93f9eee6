"""Blobs in memory for all processes, and the hostile way to them.

The real `Blobs` stands on both: it checks, hashes and meters; here bytes are kept, and calls take
time and go wrong.
"""

from __future__ import annotations

import hashlib
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.errors import EndpointUnreachable, StoreClosed, StoreError
from holdfast.storage.blobs import BlobContent, BlobEntry, BlobPage
from holdfast.storage.thread_pool import ThreadPool
from tests.simulation.faults import drawn

if TYPE_CHECKING:
    from tests.simulation.process import Process

__all__ = ["HostileCalls", "MemoryBlobs"]

P = ParamSpec("P")
T = TypeVar("T")


class MemoryBlobs:
    """The blobs of the world. Implements `holdfast.storage.blobs.BlobEngine`."""

    name = "blobs of the world"
    threads = 1

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def write(self, key: str, data: bytes, sha256: str) -> None:
        self.contents[key] = data

    def confirm_stored(self, key: str, size: int, sha256: str) -> bool:
        data = self.contents.get(key)
        return data is not None and hashlib.sha256(data).hexdigest() == sha256

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        data = self.contents.get(key)
        if data is None:
            return None
        return BlobContent(len(data), data if len(data) <= bytes_max else None)

    def delete(self, key: str) -> None:
        self.contents.pop(key, None)

    def delete_all(self, prefix: str) -> int:
        return self.delete_some(prefix, 1.0)

    def delete_some(self, prefix: str, part: float) -> int:
        """Delete some of the blobs below a prefix: as far as a call came that was cut short."""
        below = self.keys(prefix)
        doomed = below[: round(len(below) * part)]
        for key in doomed:
            del self.contents[key]
        return len(doomed)

    def list_page(self, prefix: str, after: str | None, limit: int) -> BlobPage:
        keys = [key for key in self.keys(prefix) if after is None or key > after]
        entries = [BlobEntry(key, len(self.contents[key])) for key in keys[:limit]]
        return BlobPage(entries, entries[-1].key if len(keys) > limit else None)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin so, in order."""
        return sorted(key for key in self.contents if key.startswith(prefix))

    def probe_exact_keys(self) -> bool:
        return True

    def remove_leftovers(self, before_ms: int) -> int:
        return 0

    def create(self) -> None: ...

    def close(self) -> None: ...


class HostileCalls(ThreadPool):
    """Stands where the threads would stand in which `Blobs` calls its engine."""

    def __init__(self, process: Process) -> None:
        # Deliberately not the threads' own: none is started.
        self._owner = process
        self._over = False

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._over:
            raise StoreClosed("the blobs were used after they were closed")
        process, world = self._owner, self._owner.world
        future = process.promise()
        if process.silent:
            return await future
        name = f"blob_{call.__name__}"
        subject = f"{name} {args[0] if args else ''}"
        world.operations[name] += 1
        world.note(process, "asks", subject)
        latency = world.draw_latency(process)
        answered = world.loop.time() + latency
        fault = drawn(world.plan.blobs, world.random.random())
        process.run_risk(latency)
        if world.outages.windows and (kind := world.outages.error("blobs", process)) is not None:
            asked, error = world.loop.time(), kind(f"{subject}: blob_outage")

            def fail() -> None:
                if world.watch is not None and args and not future.done():
                    world.watch.blob_failed(process, str(args[0]), subject, asked=asked)
                self._deliver(future, "blob_outage", error, subject)

            world.loop.call_at(asked + latency, fail, context=process.context)
            return await future
        flight = world.serial()

        def carry_out() -> None:
            process.in_flight.pop(flight, None)
            value: Any = None
            if fault != "blob_unreachable":
                value = call(*args, **kwargs)
            elif call.__name__ == "delete_all":
                world.blobs.delete_some(str(args[0]), world.random.random())
            world.loop.call_at(
                answered, self._deliver, future, fault, value, subject, context=process.context
            )

        moment = answered - latency * world.random.random()
        process.in_flight[flight] = world.at(moment, carry_out)
        return await future

    async def close(self) -> None:
        self._over = True

    def _deliver(self, future: Future[Any], fault: str | None, value: Any, subject: str) -> None:
        if future.done():
            return
        world = self._owner.world
        if fault is None:
            world.note(self._owner, "gets", subject)
            if world.watch is not None:
                world.watch.blob_worked(self._owner, subject.partition(" ")[2])
            future.set_result(value)
        else:
            world.note(self._owner, fault, subject, count=True)
            future.set_exception(
                value
                if isinstance(value, StoreError)
                else EndpointUnreachable(f"{subject}: {fault}")
            )
