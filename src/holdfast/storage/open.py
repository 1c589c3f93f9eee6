"""`open(url)`: a store from its address. The only module that knows which engines there are."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidUrl, StoreUnusable
from holdfast.storage.blobs import Blobs
from holdfast.storage.files import FolderBlobs
from holdfast.storage.layout import LAYOUT, Layout
from holdfast.storage.meter import Meter
from holdfast.storage.operations import Engine
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from holdfast.storage.table import Table

__all__ = ["Store", "open"]

FORMS = """\
  sqlite:///runs.db                      a file below this folder, its blobs in runs.db.blobs
  sqlite:////var/lib/holdfast/runs.db    a file by its full path
  sqlite://:memory:                      nothing is kept
  dynamodb://runs?region=eu-west-1&bucket=my-blobs
options of sqlite: changes=on|off, blobs=FOLDER, max_bytes=N
options of dynamodb: region, bucket, endpoint, bucket_endpoint, profile, kms_key"""

_SQLITE_OPTIONS = ("changes", "blobs", "max_bytes")
_DYNAMODB_OPTIONS = ("region", "bucket", "endpoint", "bucket_endpoint", "profile", "kms_key")
_SWITCH = {"on": True, "off": False}


class Store:
    """A table and its blobs, with the meter that counts what both cost."""

    def __init__(
        self, engine: Engine, blobs: Blobs | None, *, url: str, meter: Meter
    ) -> None:
        self.url = url
        self.meter = meter
        self.table = Table(engine, meter)
        self._engine = engine
        self._blobs = blobs

    @property
    def blobs(self) -> Blobs:
        """The blobs that belong to the table.

        Raises:
            StoreUnusable: the store was opened without a bucket.
        """
        if self._blobs is None:
            raise StoreUnusable(f"{self.url} names no bucket for blobs; add &bucket=NAME to it")
        return self._blobs

    async def create(self) -> None:
        """Make the table and the bucket where they are missing; change nothing that is there."""
        await self._engine.create()
        if self._blobs is not None:
            await self._blobs.create()

    async def close(self) -> None:
        """Finish what is under way and let go of files, threads and connections."""
        await self.table.close()
        if self._blobs is not None:
            await self._blobs.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def open(url: str, *, clock: Clock | None = None, layout: Layout = LAYOUT) -> Store:
    """Return the store at that address; an SQLite file is made where there is none.

    Raises:
        InvalidUrl: the address cannot be understood; the message shows the right forms.
        StoreUnusable: the file cannot be used, or the needed extra is not installed.
    """
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if (
            parts.query
        ) else {}
    except (ValueError, TypeError, AttributeError) as error:
        raise _invalid(url, str(error)) from None
    match parts.scheme:
        case "sqlite":
            return _open_sqlite(url, parts.netloc, unquote(parts.path), options, clock, layout)
        case "dynamodb":
            return _open_dynamodb(url, parts.netloc, parts.path, options, clock, layout)
        case "":
            raise _invalid(url, "it has no scheme")
        case other:
            raise _invalid(url, f"{other!r} is not a kind of store")


def _open_sqlite(
    url: str,
    host: str,
    path: str,
    options: Mapping[str, str],
    clock: Clock | None,
    layout: Layout,
) -> Store:
    _check_options(url, options, _SQLITE_OPTIONS)
    if host and host != MEMORY:
        raise _invalid(url, f"a file's path comes after three slashes: sqlite:///{host}{path}")
    if not host and path in ("", "/"):
        raise _invalid(url, "it names no file")
    file = host or path.removeprefix("/")
    clock = clock or SystemClock()
    engine = SqliteEngine(
        file,
        layout=layout,
        clock=clock,
        changes=_switch(url, options, "changes"),
        max_bytes=_bytes(url, options, "max_bytes"),
    )
    meter = Meter()
    if host and "blobs" not in options:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-")
        backend = FolderBlobs(Path(folder.name), clock=clock, on_close=folder.cleanup)
    else:
        backend = FolderBlobs(Path(options.get("blobs") or f"{file}.blobs"), clock=clock)
    return Store(engine, Blobs(backend, meter), url=url, meter=meter)


def _open_dynamodb(
    url: str,
    table: str,
    path: str,
    options: Mapping[str, str],
    clock: Clock | None,
    layout: Layout,
) -> Store:
    _check_options(url, options, _DYNAMODB_OPTIONS)
    if not table or path not in ("", "/"):
        raise _invalid(url, "after the two slashes comes the name of the table, and nothing else")
    try:
        # Only here, so that the embedded engine needs none of what speaks to AWS.
        from holdfast.storage.dynamodb import DynamoEngine
        from holdfast.storage.s3 import S3Blobs
    except ImportError as error:
        raise StoreUnusable(
            f"{url} needs what speaks to AWS: pip install 'holdfast[aws]' ({error})"
        ) from error
    engine = DynamoEngine(
        table,
        region=options.get("region"),
        endpoint=options.get("endpoint"),
        profile=options.get("profile"),
        layout=layout,
        clock=clock or SystemClock(),
    )
    meter = Meter()
    blobs = None
    if "bucket" in options:
        backend = S3Blobs(
            options["bucket"],
            region=options.get("region"),
            endpoint=options.get("bucket_endpoint"),
            profile=options.get("profile"),
            kms_key=options.get("kms_key"),
        )
        blobs = Blobs(backend, meter)
    return Store(engine, blobs, url=url, meter=meter)


def _check_options(url: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name, value in options.items():
        if name not in known:
            raise _invalid(url, f"there is no option {name!r}")
        if not value:
            raise _invalid(url, f"the option {name!r} is empty")


def _switch(url: str, options: Mapping[str, str], name: str) -> bool | None:
    value = options.get(name)
    if value is not None and value not in _SWITCH:
        raise _invalid(url, f"{name} is on or off, not {value!r}")
    return None if value is None else _SWITCH[value]


def _bytes(url: str, options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is not None and (not value.isdecimal() or int(value) == 0):
        raise _invalid(url, f"{name} is a whole number of bytes, not {value!r}")
    return None if value is None else int(value)


def _invalid(url: object, reason: str) -> InvalidUrl:
    return InvalidUrl(f"cannot open {url!r:.200}: {reason}. A store's address looks so:\n{FORMS}")
