"""`Blobs`: large values, kept beside the table in a folder or in a bucket, and checked when read.

A blob has a key, and is written and read as a whole. What binds the key binds it on every engine:

- at most 1,024 bytes in UTF-8, in at most 32 segments that are separated by ``/``;
- a segment is not empty, does not begin with ``.``, and is at most 255 bytes long as the name of a
  file, where ``~`` and ``%`` count three and a segment that others follow counts one more;
- no control character, no backslash, nothing that UTF-8 or XML cannot carry.

``a`` and ``a/b`` may both be blobs. Capitals matter, whatever the file system thinks of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from holdfast.errors import (
    BlobDamaged,
    BlobNotFound,
    InvalidBlobKey,
    InvalidItem,
    InvalidQuery,
    InvalidRequest,
)
from holdfast.storage.meter import Meter
from holdfast.storage.thread_pool import ThreadPool
from holdfast.storage.units import NO_UNITS, Units

__all__ = [
    "BLOB_BYTES_MAX",
    "BLOB_KEY_BYTES_MAX",
    "BLOB_SEGMENTS_MAX",
    "BLOB_SEGMENT_BYTES_MAX",
    "LIST_LIMIT_MAX",
    "PART_BYTES",
    "BlobContent",
    "BlobEngine",
    "BlobEntry",
    "BlobPage",
    "BlobRef",
    "Blobs",
    "validate_blob_key",
]

P = ParamSpec("P")
T = TypeVar("T")

BLOB_BYTES_MAX = 1024**3
"""A blob is in memory as a whole whenever it is put or got."""
BLOB_KEY_BYTES_MAX = 1024
BLOB_SEGMENTS_MAX = 32
"""Walking through a folder holds one open file for each level."""
BLOB_SEGMENT_BYTES_MAX = 255
LIST_LIMIT_MAX = 1000
PART_BYTES = 8 * 1024**2
"""A larger blob goes to a bucket in parts of this size, each of which is a request."""

# Up to here a hash takes less time than handing it to a thread and back is worth.
_INLINE_HASH_BYTES_MAX = 128 * 1024
_FORBIDDEN_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ufffe\uffff]")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobRef(msgspec.Struct, frozen=True):
    """Names a blob and what must be in it: this is what an item stores."""

    key: str
    sha256: str
    """The hash of its bytes, 64 hexadecimal digits."""
    size: int

    def as_item(self) -> dict[str, Any]:
        """Return the reference as plain values; a hash that ends the key is not said twice."""
        item: dict[str, Any] = {"key": self.key, "size": self.size}
        if self.sha256 != _last_segment(self.key):
            item["sha256"] = self.sha256
        return item

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> BlobRef:
        """Return the reference that `as_item` wrote.

        Raises:
            InvalidItem: these are not the values of a reference.
        """
        try:
            key = item["key"]
            ref = cls(key, item.get("sha256", _last_segment(key)), item["size"])
            return _validate_ref(ref)
        except (KeyError, TypeError, AttributeError, InvalidRequest) as error:
            raise InvalidItem(f"not a reference to a blob: {item!r:.200} ({error})") from None


class BlobEntry(msgspec.Struct, frozen=True):
    """One line of a list of blobs."""

    key: str
    size: int


class BlobPage(msgspec.Struct, frozen=True):
    """Some blobs, in the order of their keys."""

    entries: list[BlobEntry]
    cursor: str | None
    """Pass it as ``after`` to read what follows; None at the end. What follows may be nothing."""


class BlobContent(msgspec.Struct, frozen=True):
    """What an engine found under a key."""

    size: int
    data: bytes | None
    """None where there is more than was asked for."""


class BlobEngine(Protocol):
    """Moves bytes: everything that `Blobs` needs from what lies beneath it.

    It blocks: `Blobs` calls it in threads, several at a time. Keys and prefixes that come here
    were checked. Everything raises a `StoreUnavailable` or a `StoreUnusable` where the store cannot
    be reached or used.
    """

    name: str
    """What errors call it."""
    threads: int
    """How many calls it takes at a time."""

    def write(self, key: str, data: bytes, sha256: str) -> None:
        """Store a blob in place of what stood there; nobody ever sees a part of it.

        When this returns, the blob outlives a crash of the machine.
        """
        ...

    def confirm_stored(self, key: str, size: int, sha256: str) -> bool:
        """Return whether that blob stands there, to outlive a crash, as far as a look can tell.

        False where it cannot be told: it is then written again.
        """
        ...

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        """Return what is there, without the bytes where it has more than that many."""
        ...

    def delete(self, key: str) -> None:
        """Delete a blob; do nothing where there is none."""
        ...

    def delete_all(self, prefix: str) -> int:
        """Delete every blob below a prefix that ends with ``/``; return how many there were."""
        ...

    def list_page(self, prefix: str, after: str | None, limit: int) -> BlobPage:
        """List blobs by the UTF-8 bytes of their keys; leave out what no `write` can have made."""
        ...

    def remove_leftovers(self, before_ms: int) -> int:
        """Remove what crashes left behind before a time and no `page` shows; return how much."""
        ...

    def probe_exact_keys(self) -> bool:
        """Return whether each blob is listed under the key with which it was put, and no other."""
        ...

    def create(self) -> None:
        """Make the store ready for use; change nothing that is there."""
        ...

    def close(self) -> None:
        """Finish what is under way and let go of files, threads and connections."""
        ...


class Blobs:
    """Large values under keys, the same in a folder and in a bucket.

    A blob is there as a whole or not at all, and what was put is on the disk when `put` returns.
    A call that is cancelled may still be carried out. What the store cannot reach is raised as a
    `StoreUnavailable` or `StoreUnusable`; what it refuses is named under each method.
    """

    def __init__(
        self,
        engine: BlobEngine,
        meter: Meter,
        purpose: str = "other",
        *,
        threads: ThreadPool | None = None,
        before_call: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take the engine; ``ready`` is awaited before each call of it."""
        self._before_call = before_call
        self._engine = engine
        self._meter = meter
        self._purpose = purpose
        self._threads = threads or ThreadPool(engine.name, engine.threads)

    def with_purpose(self, purpose: str) -> Blobs:
        """Return these blobs with their operations metered under another purpose."""
        return Blobs(
            self._engine, self._meter, purpose, threads=self._threads, before_call=self._before_call
        )

    async def put(self, data: bytes, *, key: str | None = None, prefix: str = "") -> BlobRef:
        """Store bytes and return the reference to them.

        Under a ``key`` they take the place of what stood there. Without one the key is their hash,
        below ``prefix``, and what is there already is not written again.

        Raises:
            InvalidBlobKey: the key or the prefix cannot be one.
            InvalidRequest: not bytes, or more than 1 GiB.
        """
        _validate_data(data)
        if key is not None:
            validate_blob_key(key)
            if prefix:
                raise InvalidBlobKey("a blob has a key or a prefix, not both", field="prefix")
        elif prefix != "":
            _validate_folder_prefix(prefix)
        ref = await _make_ref(data, key, prefix)
        units = Units(blob_gets=1) if key is None else NO_UNITS
        stored = key is None and await self._call_engine(
            self._engine.confirm_stored, ref.key, ref.size, ref.sha256
        )
        if not stored:
            await self._call_engine(self._engine.write, ref.key, data, ref.sha256)
            units += Units(blob_puts=_put_requests(ref.size), blob_bytes=ref.size)
        self._meter_operation("blob_put", units)
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        """Return the bytes that were put, and no others.

        Raises:
            BlobNotFound: there is no blob of that key.
            BlobDamaged: its size or its hash is not that of the reference.
        """
        _validate_ref(ref)
        content = await self._call_engine(self._engine.read, ref.key, ref.size)
        got = len(content.data or b"") if content else 0
        self._meter_operation("blob_get", Units(blob_gets=1, blob_bytes=got))
        if content is None:
            raise BlobNotFound(f"there is no blob {ref.key!r}", key=ref.key)
        if content.data is None:
            raise _damaged_error(ref, f"{content.size:,} bytes")
        found = await _hash_data(content.data)
        if found != ref.sha256 or content.size != ref.size:
            raise _damaged_error(ref, f"{content.size:,} bytes with sha256 {found}")
        return content.data

    async def delete(self, key: str) -> None:
        """Delete a blob; do nothing where there is none.

        Raises:
            InvalidBlobKey: this cannot be a key.
        """
        await self._call_engine(self._engine.delete, validate_blob_key(key))
        self._meter_operation("blob_delete", NO_UNITS)

    async def delete_all(self, prefix: str) -> int:
        """Delete every blob below a prefix, one after the other; return how many there were.

        The prefix ends with ``/`` and is not empty, so that a slip cannot empty the store.

        Raises:
            InvalidBlobKey: this cannot be such a prefix.
        """
        deleted = await self._call_engine(self._engine.delete_all, _validate_folder_prefix(prefix))
        # To delete costs nothing; to find what there is costs a list for each thousand.
        self._meter_operation("blob_delete", Units(blob_puts=max(1, -(-deleted // LIST_LIMIT_MAX))))
        return deleted

    async def list(
        self, prefix: str = "", *, after: str | None = None, limit: int = LIST_LIMIT_MAX
    ) -> BlobPage:
        """Return one page of the blobs whose keys begin so, by the UTF-8 bytes of their keys.

        Raises:
            InvalidBlobKey: no key begins with this prefix.
            InvalidQuery: a wrong limit, or an ``after`` that is not text.
        """
        if type(limit) is not int or not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidQuery(
                f"limit is a whole number from 1 to {LIST_LIMIT_MAX}, not {limit!r:.80}",
                field="limit",
            )
        page = await self._call_engine(
            self._engine.list_page, _validate_prefix(prefix), _validate_after(after), limit
        )
        self._meter_operation("blob_list", Units(blob_puts=1))
        return page

    async def remove_leftovers(self, *, before_ms: int) -> int:
        """Remove what crashes left behind before a time, and is no blob; return how much.

        In a folder that is files that were being written, and folders that are empty. A bucket
        keeps to itself what was not written to its end; a lifecycle rule of its own removes it.

        Raises:
            InvalidRequest: not a time in whole milliseconds.
        """
        if type(before_ms) is not int or before_ms < 0:
            raise InvalidRequest(f"not a time: {before_ms!r:.80}", field="before_ms")
        removed = await self._call_engine(self._engine.remove_leftovers, before_ms)
        self._meter_operation("blob_tidy", NO_UNITS)
        return removed

    async def probe_exact_keys(self) -> bool:
        """Return whether each blob is listed under the key with which it was put, and no other.

        Not so in a folder that was filled where the file system takes capitals for small letters.
        """
        return await self._call_engine(self._engine.probe_exact_keys)

    async def create(self) -> None:
        """Make the folder or the bucket where it is missing; change nothing that is there."""
        await self._call_engine(self._engine.create)

    async def close(self) -> None:
        """Finish what is under way and let go of files, threads and connections."""
        await self._threads.close()
        await asyncio.to_thread(self._engine.close)

    async def _call_engine(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._before_call is not None:
            await self._before_call()
        return await self._threads.run(call, *args, **kwargs)

    def _meter_operation(self, operation: str, units: Units) -> None:
        self._meter.record(self._purpose, operation, units)


def validate_blob_key(key: str, *, field: str = "key") -> str:
    """Return a key that a file and an object can have alike.

    Raises:
        InvalidBlobKey: what is wrong with it.
    """
    if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidBlobKey(f"a {field} is text and not empty, not {key!r:.80}", field=field)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidBlobKey(f"{key!r:.80} has half a surrogate pair", field=field) from None
    _check_limit(size, BLOB_KEY_BYTES_MAX, f"the {field} {key!r:.80} has", "bytes", field)
    if unfit := _FORBIDDEN_CHARACTER.search(key):
        raise InvalidBlobKey(f"{key!r:.80} has {unfit[0]!r}, which no key may have", field=field)
    segments = key.split("/")
    _check_limit(
        len(segments), BLOB_SEGMENTS_MAX, f"the {field} {key!r:.80} has", "segments", field
    )
    for place, segment in enumerate(segments, 1):
        if not segment:
            raise InvalidBlobKey(f"{key!r:.80} has an empty segment", field=field)
        if segment.startswith("."):
            raise InvalidBlobKey(f"a segment of {key!r:.80} begins with a dot", field=field)
        length = len(segment.encode()) + 2 * (segment.count("~") + segment.count("%"))
        length += place < len(segments)
        what = f"the segment {segment!r:.80} as the name of a file has"
        _check_limit(length, BLOB_SEGMENT_BYTES_MAX, what, "bytes", field)
    return key


def _check_limit(size: int, limit: int, what: str, unit: str, field: str) -> None:
    if size > limit:
        raise InvalidBlobKey(
            f"{what} {size:,} {unit}; the limit is {limit:,}", field=field, size=size, limit=limit
        )


def _validate_prefix(prefix: str) -> str:
    """Return what a key can begin with."""
    if prefix == "":
        return prefix
    ends_a_segment = isinstance(prefix, str) and prefix.endswith("/")  # pyright: ignore[reportUnnecessaryIsInstance]
    validate_blob_key(f"{prefix}x" if ends_a_segment else prefix, field="prefix")
    return prefix


def _validate_folder_prefix(prefix: str) -> str:
    """Return what stands before the last segment of a key."""
    if not isinstance(prefix, str) or not prefix.endswith("/"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidBlobKey(f"this prefix must end with '/': {prefix!r:.80}", field="prefix")
    return _validate_prefix(prefix)


def _validate_after(after: str | None) -> str | None:
    """Return a place in the order of the keys, which need not be a key itself."""
    if after is None or after == "":
        return None
    try:
        size = len(after.encode())
    except (AttributeError, UnicodeEncodeError):
        raise InvalidQuery(f"after is a key, not {after!r:.80}", field="after") from None
    if size > BLOB_KEY_BYTES_MAX or "\0" in after:
        raise InvalidQuery(
            f"after is a key, not {after!r:.80}",
            field="after",
            size=size,
            limit=BLOB_KEY_BYTES_MAX,
        )
    return after


def _validate_data(data: bytes) -> None:
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"a blob is bytes, not {type(data).__name__}", field="data")
    if len(data) > BLOB_BYTES_MAX:
        raise InvalidRequest(
            f"the blob has {len(data):,} bytes; the limit is {BLOB_BYTES_MAX:,}",
            field="data",
            size=len(data),
            limit=BLOB_BYTES_MAX,
        )


def _validate_ref(ref: BlobRef) -> BlobRef:
    if not isinstance(ref, BlobRef):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"a blob is got by its BlobRef, not by {ref!r:.80}", field="ref")
    validate_blob_key(ref.key)
    if not isinstance(ref.sha256, str) or not _SHA256.fullmatch(ref.sha256):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"not a sha256: {ref.sha256!r:.80}", field="sha256")
    if type(ref.size) is not int or not 0 <= ref.size <= BLOB_BYTES_MAX:
        raise InvalidRequest(f"not a blob's size: {ref.size!r:.80}", field="size")
    return ref


async def _make_ref(data: bytes, key: str | None, prefix: str) -> BlobRef:
    sha256 = await _hash_data(data)
    if key is None:
        key = validate_blob_key(prefix + sha256, field="prefix")
    return BlobRef(key, sha256, len(data))


def _put_requests(size: int) -> int:
    """Return in how many requests a blob goes to a bucket; in parts, two more begin and end it."""
    return 1 if size <= PART_BYTES else -(-size // PART_BYTES) + 2


async def _hash_data(data: bytes) -> str:
    if len(data) <= _INLINE_HASH_BYTES_MAX:
        return hashlib.sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())


def _last_segment(key: str) -> str:
    return key.rpartition("/")[2]


def _damaged_error(ref: BlobRef, found: str) -> BlobDamaged:
    return BlobDamaged(
        f"blob {ref.key!r} is damaged: {ref.size:,} bytes with sha256 {ref.sha256} were put, "
        f"{found} are there",
        key=ref.key,
    )
