"""`Blobs`: large values, stored beside the table in a folder or bucket, and verified when read.

A blob has a key, and is written and read as a whole. The same limits apply on every engine:

- at most 1,024 bytes in UTF-8, in at most 32 segments that are separated by ``/``;
- a segment is not empty, does not begin with ``.``, and has at most 255 bytes as the name of a
  file, where ``~`` and ``%`` count as three bytes and every segment but the last has one more;
- no control characters, no backslashes, and no characters that UTF-8 or XML cannot express.

``a`` and ``a/b`` may both be blobs. Keys are case-sensitive on every file system.
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
    HoldfastError,
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
"""A put or get keeps the whole blob in memory."""
BLOB_KEY_BYTES_MAX = 1024
BLOB_SEGMENTS_MAX = 32
"""Listing a folder keeps one file descriptor open for each level."""
BLOB_SEGMENT_BYTES_MAX = 255
LIST_LIMIT_MAX = 1000
PART_BYTES = 8 * 1024**2
"""A larger blob is uploaded to a bucket in parts of this size, one request each."""

# Hashing fewer bytes than this is faster than handing them to a thread.
_INLINE_HASH_BYTES_MAX = 128 * 1024
_FORBIDDEN_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ufffe\uffff]")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobRef(msgspec.Struct, frozen=True):
    """A reference to a blob, as an item stores it: its key, hash and size."""

    key: str
    sha256: str
    """The hash of its bytes, 64 hexadecimal digits."""
    size: int

    def as_item(self) -> dict[str, Any]:
        """Return the reference as plain values, without a hash that is also the end of the key."""
        item: dict[str, Any] = {"key": self.key, "size": self.size}
        if self.sha256 != _last_segment(self.key):
            item["sha256"] = self.sha256
        return item

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> BlobRef:
        """Return the reference that `as_item` wrote.

        Raises:
            InvalidItem: ``item`` is not a reference.
        """
        try:
            key = item["key"]
            ref = cls(key, item.get("sha256", _last_segment(key)), item["size"])
            return _validate_ref(ref)
        except (KeyError, TypeError, AttributeError, InvalidRequest) as error:
            raise InvalidItem(
                f"the item is not a reference to a blob: {item!r:.200} ({error})"
            ) from None


class BlobEntry(msgspec.Struct, frozen=True):
    """One line of a list of blobs."""

    key: str
    size: int


class BlobPage(msgspec.Struct, frozen=True):
    """Some blobs, in the order of their keys."""

    entries: list[BlobEntry]
    cursor: str | None
    """Pass it as ``after`` to read the next page, which may be empty; None at the end."""


class BlobContent(msgspec.Struct, frozen=True):
    """The blob that an engine found under a key."""

    size: int
    data: bytes | None
    """None if the blob has more bytes than the caller asked for."""


class BlobEngine(Protocol):
    """Stores and reads bytes: everything that `Blobs` needs from a folder or bucket.

    The methods block: `Blobs` calls them in several threads at a time. It has validated the keys
    and prefixes. Every method raises `StoreUnavailable` or `StoreUnusable` if it cannot reach or
    use the store.
    """

    name: str
    """The name of the engine in error messages."""
    threads: int
    """How many calls the engine serves at a time."""

    def write(self, key: str, data: bytes, sha256: str) -> None:
        """Store a blob in place of any that has its key; readers never see a part of it.

        When this returns, the blob survives a crash of the machine.
        """
        ...

    def confirm_stored(self, key: str, size: int, sha256: str) -> bool:
        """Make sure that an existing blob survives a crash; return whether it is this very blob.

        Returns False if the engine cannot tell. The caller then writes the blob again.
        """
        ...

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        """Return a blob, without its bytes if there are more than ``bytes_max``, or None."""
        ...

    def delete(self, key: str) -> None:
        """Delete a blob, if there is one."""
        ...

    def delete_all(self, prefix: str) -> int:
        """Delete all blobs below a prefix that ends with ``/``; return how many there were."""
        ...

    def list_page(self, prefix: str, after: str | None, limit: int) -> BlobPage:
        """List blobs in the order of the UTF-8 bytes of their keys; skip foreign files."""
        ...

    def remove_leftovers(self, before_ms: int) -> int:
        """Remove unfinished blobs that crashes left behind before a time; return how many."""
        ...

    def probe_exact_keys(self) -> bool:
        """Find out whether keys are exact: each blob is listed under the key of its put only."""
        ...

    def create(self) -> None:
        """Create the folder or bucket, if it does not exist."""
        ...

    def close(self) -> None:
        """Finish the operations under way, and release files, threads and connections."""
        ...


class Blobs:
    """Large values under keys, the same in a folder and in a bucket.

    Readers see a whole blob or none, and a blob is durable when `put` returns. A cancelled call may
    still take effect. Every method raises `StoreUnavailable` or `StoreUnusable` if the store cannot
    be reached or used. Each method lists its other errors.
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
        """``before_call`` is awaited before each call of the engine."""
        self._before_call = before_call
        self._engine = engine
        self._meter = meter
        self._purpose = purpose
        self._threads = threads or ThreadPool(engine.name, engine.threads)

    def with_purpose(self, purpose: str) -> Blobs:
        """Return the same blobs, with their operations metered under another purpose."""
        return Blobs(
            self._engine, self._meter, purpose, threads=self._threads, before_call=self._before_call
        )

    async def put(self, data: bytes, *, key: str | None = None, prefix: str = "") -> BlobRef:
        """Store bytes and return the reference to them.

        With a ``key``, they replace the blob of that key. Without one, the key is ``prefix`` and
        their hash, and an existing blob is not written again.

        Raises:
            InvalidBlobKey: the key or the prefix breaks a limit.
            InvalidRequest: ``data`` is not bytes, or has more than 1 GiB.
        """
        _validate_data(data)
        if key is not None:
            validate_blob_key(key)
            if prefix:
                raise InvalidBlobKey("pass a key or a prefix, not both", field="prefix")
        elif prefix != "":
            _validate_folder_prefix(prefix)
        ref = await _make_ref(data, key, prefix)
        units = Units(blob_gets=1) if key is None else NO_UNITS
        began = self._meter.now()
        stored = key is None and await self._call_engine(
            self._engine.confirm_stored, ref.key, ref.size, ref.sha256
        )
        if not stored:
            await self._call_engine(self._engine.write, ref.key, data, ref.sha256)
            units += Units(blob_puts=_put_requests(ref.size), blob_bytes=ref.size)
        self._meter_operation("blob_put", units, began)
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        """Return the bytes that were put, after checking their hash.

        Raises:
            BlobNotFound: there is no blob of that key.
            BlobDamaged: its size or hash differs from the reference.
        """
        _validate_ref(ref)
        began = self._meter.now()
        content = await self._call_engine(self._engine.read, ref.key, ref.size)
        got = len(content.data or b"") if content else 0
        self._meter_operation("blob_get", Units(blob_gets=1, blob_bytes=got), began)
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
            InvalidBlobKey: no blob can have this key.
        """
        began = self._meter.now()
        await self._call_engine(self._engine.delete, validate_blob_key(key))
        self._meter_operation("blob_delete", NO_UNITS, began)

    async def delete_all(self, prefix: str) -> int:
        """Delete all blobs below a prefix, one after the other; return how many there were.

        The prefix must end with ``/``, so that a mistake cannot empty the store.

        Raises:
            InvalidBlobKey: this is not such a prefix.
        """
        began = self._meter.now()
        deleted = await self._call_engine(self._engine.delete_all, _validate_folder_prefix(prefix))
        # Deletes are free. Finding the blobs costs one list for each thousand.
        units = Units(blob_puts=max(1, -(-deleted // LIST_LIMIT_MAX)))
        self._meter_operation("blob_delete", units, began)
        return deleted

    async def list(
        self, prefix: str = "", *, after: str | None = None, limit: int = LIST_LIMIT_MAX
    ) -> BlobPage:
        """Return one page of the blobs whose keys begin with a prefix.

        Their order is that of the UTF-8 bytes of their keys.

        Raises:
            InvalidBlobKey: no key begins with this prefix.
            InvalidQuery: ``limit`` or ``after`` is wrong.
        """
        if type(limit) is not int or not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidQuery(
                f"limit must be an integer from 1 to {LIST_LIMIT_MAX}, got {limit!r:.80}",
                field="limit",
            )
        began = self._meter.now()
        page = await self._call_engine(
            self._engine.list_page, _validate_prefix(prefix), _validate_after(after), limit
        )
        self._meter_operation("blob_list", Units(blob_puts=1), began)
        return page

    async def remove_leftovers(self, *, before_ms: int) -> int:
        """Remove unfinished blobs that crashes left behind before a time; return how many.

        In a folder, these are unfinished files and empty folders. A bucket does not list unfinished
        uploads; a lifecycle rule of the bucket removes them.

        Raises:
            InvalidRequest: ``before_ms`` is not a time in milliseconds.
        """
        if type(before_ms) is not int or before_ms < 0:
            raise InvalidRequest(
                f"before_ms must be a time in milliseconds since 1970, got {before_ms!r:.80}",
                field="before_ms",
            )
        began = self._meter.now()
        removed = await self._call_engine(self._engine.remove_leftovers, before_ms)
        self._meter_operation("blob_tidy", NO_UNITS, began)
        return removed

    async def probe_exact_keys(self) -> bool:
        """Return whether each blob is listed under the key with which it was put, and no other.

        They are not in an old folder on a file system that ignores the case of letters. Looking
        may create files in the folder.
        """
        return await self._call_engine(self._engine.probe_exact_keys)

    async def create(self) -> None:
        """Create the folder or the bucket, if it does not exist."""
        await self._call_engine(self._engine.create)

    async def close(self) -> None:
        """Finish the operations under way, and release files, threads and connections."""
        await self._threads.close()
        await asyncio.to_thread(self._engine.close)

    async def _call_engine(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._before_call is not None:
            await self._before_call()
        try:
            return await self._threads.run(call, *args, **kwargs)
        except HoldfastError as error:
            self._meter.record_failure("blob", error.code)
            raise

    def _meter_operation(self, operation: str, units: Units, began: float) -> None:
        self._meter.record(self._purpose, operation, units, began=began)


def validate_blob_key(key: str, *, field: str = "key") -> str:
    """Return a key that both a file and an S3 object can have.

    Raises:
        InvalidBlobKey: the key breaks a limit.
    """
    if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidBlobKey(f"{field} must be non-empty text, got {key!r:.80}", field=field)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidBlobKey(
            f"{field} must not contain a lone surrogate, got {key!r:.80}", field=field
        ) from None
    _check_limit(size, BLOB_KEY_BYTES_MAX, f"the {field} {key!r:.80}", "bytes", field)
    if forbidden := _FORBIDDEN_CHARACTER.search(key):
        raise InvalidBlobKey(
            f"{field} must not contain {forbidden[0]!r}, got {key!r:.80}", field=field
        )
    segments = key.split("/")
    _check_limit(len(segments), BLOB_SEGMENTS_MAX, f"the {field} {key!r:.80}", "segments", field)
    for place, segment in enumerate(segments, 1):
        if not segment:
            raise InvalidBlobKey(
                f"{field} must not have an empty segment, got {key!r:.80}", field=field
            )
        if segment.startswith("."):
            raise InvalidBlobKey(
                f"no segment of {field} must begin with a dot, got {key!r:.80}", field=field
            )
        length = len(segment.encode()) + 2 * (segment.count("~") + segment.count("%"))
        length += place < len(segments)
        what = f"the segment {segment!r:.80}, as the name of a file,"
        _check_limit(length, BLOB_SEGMENT_BYTES_MAX, what, "bytes", field)
    return key


def _check_limit(size: int, limit: int, what: str, unit: str, field: str) -> None:
    if size > limit:
        raise InvalidBlobKey(
            f"{what} must have at most {limit:,} {unit}, got {size:,}",
            field=field,
            size=size,
            limit=limit,
        )


def _validate_prefix(prefix: str) -> str:
    """Return text with which a key can begin."""
    if prefix == "":
        return prefix
    ends_a_segment = isinstance(prefix, str) and prefix.endswith("/")  # pyright: ignore[reportUnnecessaryIsInstance]
    validate_blob_key(f"{prefix}x" if ends_a_segment else prefix, field="prefix")
    return prefix


def _validate_folder_prefix(prefix: str) -> str:
    """Return a non-empty prefix that ends with a segment of a key."""
    if not isinstance(prefix, str) or not prefix.endswith("/"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidBlobKey(f"prefix must end with '/', got {prefix!r:.80}", field="prefix")
    return _validate_prefix(prefix)


def _validate_after(after: str | None) -> str | None:
    """Return a position in the order of the keys, which need not be a key itself."""
    if after is None or after == "":
        return None
    try:
        size = len(after.encode())
    except (AttributeError, UnicodeEncodeError):
        raise InvalidQuery(f"after must be a key, got {after!r:.80}", field="after") from None
    if size > BLOB_KEY_BYTES_MAX or "\0" in after:
        raise InvalidQuery(
            f"after must be a key, got {after!r:.80}",
            field="after",
            size=size,
            limit=BLOB_KEY_BYTES_MAX,
        )
    return after


def _validate_data(data: bytes) -> None:
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"data must be bytes, got {type(data).__name__}", field="data")
    if len(data) > BLOB_BYTES_MAX:
        raise InvalidRequest(
            f"data must have at most {BLOB_BYTES_MAX:,} bytes, got {len(data):,}",
            field="data",
            size=len(data),
            limit=BLOB_BYTES_MAX,
        )


def _validate_ref(ref: BlobRef) -> BlobRef:
    if not isinstance(ref, BlobRef):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"ref must be a BlobRef, got {ref!r:.80}", field="ref")
    validate_blob_key(ref.key)
    if not isinstance(ref.sha256, str) or not _SHA256.fullmatch(ref.sha256):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(
            f"sha256 must be 64 hexadecimal digits, got {ref.sha256!r:.80}", field="sha256"
        )
    if type(ref.size) is not int or not 0 <= ref.size <= BLOB_BYTES_MAX:
        raise InvalidRequest(
            f"size must be an integer from 0 to {BLOB_BYTES_MAX:,}, got {ref.size!r:.80}",
            field="size",
        )
    return ref


async def _make_ref(data: bytes, key: str | None, prefix: str) -> BlobRef:
    sha256 = await _hash_data(data)
    if key is None:
        key = validate_blob_key(prefix + sha256, field="prefix")
    return BlobRef(key, sha256, len(data))


def _put_requests(size: int) -> int:
    """Return how many requests upload a blob; with parts, two more begin and complete it."""
    return 1 if size <= PART_BYTES else -(-size // PART_BYTES) + 2


async def _hash_data(data: bytes) -> str:
    if len(data) <= _INLINE_HASH_BYTES_MAX:
        return hashlib.sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())


def _last_segment(key: str) -> str:
    return key.rpartition("/")[2]


def _damaged_error(ref: BlobRef, found: str) -> BlobDamaged:
    return BlobDamaged(
        f"blob {ref.key!r} is damaged: expected {ref.size:,} bytes with sha256 {ref.sha256}, "
        f"found {found}",
        key=ref.key,
    )
