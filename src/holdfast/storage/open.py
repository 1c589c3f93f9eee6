"""`open(url)`: a store from its address. Only this module knows all engines."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidUrl, StoreNotFound, StoreUnusable
from holdfast.redaction import without_credentials
from holdfast.storage.blobs import Blobs
from holdfast.storage.bucket_owner import BucketOwner
from holdfast.storage.damage_log import DamageLog
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.layout import LAYOUT, Layout
from holdfast.storage.meter import Meter
from holdfast.storage.operations import TableEngine
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from holdfast.storage.table import Table

__all__ = [
    "FORMS",
    "Store",
    "cloudformation_template",
    "is_in_memory",
    "open",
    "sqlite_paths",
    "terraform_definition",
]

FORMS = """\
  sqlite:///runs.db                      a file in this folder, its blobs in runs.db.blobs
  sqlite:////var/lib/holdfast/runs.db    a file by its absolute path
  sqlite://:memory:                      in memory, lost at exit
  dynamodb://runs?region=eu-west-1&bucket=my-blobs
options of sqlite: changes=on|off, blobs=FOLDER, max_bytes=N
options of dynamodb: region, bucket, bucket_owner, endpoint, bucket_endpoint, profile, kms_key"""

_SQLITE_OPTIONS = ("changes", "blobs", "max_bytes")
_DYNAMODB_OPTIONS = (
    "region",
    "bucket",
    "bucket_owner",
    "endpoint",
    "bucket_endpoint",
    "profile",
    "kms_key",
)
# These options need the option bucket.
_BUCKET_OPTIONS = ("bucket_owner", "bucket_endpoint", "kms_key")
_URL_LETTERS_MAX = 8192
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SWITCH = {"on": True, "off": False}
_BYTES = re.compile(r"[0-9]{1,18}")
# Half of a character, or a byte of an argument that is not UTF-8.
_SURROGATE = re.compile("[\ud800-\udfff]")


class Store:
    """A table and its blobs, with the meter that counts the cost of both."""

    def __init__(
        self,
        engine: TableEngine,
        blobs: Blobs | None,
        *,
        url: str,
        meter: Meter,
        ownership: BucketOwner | None = None,
    ) -> None:
        self.url = url
        self.meter = meter
        self.damage = DamageLog()
        """Items of the table that this process could not read."""
        self.table = Table(engine, meter, damage=self.damage)
        self._engine = engine
        self._blobs = blobs
        self._bucket_owner = ownership

    @property
    def poll_seconds(self) -> float:
        """How long a worker of this store waits between two polls, unless it is told otherwise."""
        return self._engine.poll_seconds

    def records(self, purpose: str) -> Table:
        """Return the table for Holdfast's own records, which contain no empty text or bytes."""
        return Table(self._engine, self.meter, purpose, allows_empty=False, damage=self.damage)

    @property
    def blobs(self) -> Blobs:
        """The blobs that belong to the table.

        Raises:
            StoreUnusable: the store was opened without a bucket.
        """
        if self._blobs is None:
            raise StoreUnusable(f"{self.url} names no bucket for blobs; add &bucket=NAME to it")
        return self._blobs

    @property
    def has_blobs(self) -> bool:
        """Whether the store has blobs: the address of a DynamoDB table may name no bucket."""
        return self._blobs is not None

    async def create(self) -> None:
        """Create the bucket and the table if they are missing; change neither if they exist.

        The table comes last, because nothing is written without it. A call that is interrupted
        leaves nothing in use, and the next call finishes the work. Then the table stores the
        account that owns the bucket.
        """
        if self._bucket_owner is not None:
            await self._bucket_owner.load_if_table_exists()
        if self._blobs is not None:
            await self._blobs.create()
        await self._engine.create()
        if self._bucket_owner is not None:
            await self._bucket_owner.save()

    async def close(self) -> None:
        """Finish the operations under way, and release files, threads and connections."""
        try:
            await self.table.close()
        finally:
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


def open(
    url: str, *, clock: Clock | None = None, layout: Layout = LAYOUT, make: bool = True
) -> Store:
    """Return the store at an address; create a SQLite file if there is none.

    Opening a file may wait for other processes that have it open. With ``make=False`` the file must
    exist.

    Raises:
        InvalidUrl: the address cannot be understood; the message shows the right forms.
        StoreNotFound: there is no file, and ``make`` is False.
        StoreUnusable: the file cannot be used, or the extra ``aws`` is not installed.
    """
    address = _parse_url(url)
    if address.scheme == "sqlite":
        return _open_sqlite(address, clock or SystemClock(), layout, make=make)
    try:
        return _open_dynamodb(address, clock or SystemClock(), layout)
    except InvalidUrl as error:
        raise _invalid_url(url, str(error)) from None


def cloudformation_template(url: str, *, layout: Layout = LAYOUT) -> dict[str, Any]:
    """Return a CloudFormation template for the table at an address.

    Raises:
        InvalidUrl: the address cannot be understood, or is that of a file.
        StoreUnusable: the extra ``aws`` is not installed.
    """
    return _defined(url, "template", layout)


def terraform_definition(url: str, *, layout: Layout = LAYOUT) -> dict[str, Any]:
    """Return a Terraform configuration (JSON syntax) for the table at an address.

    Raises:
        InvalidUrl: the address cannot be understood, or is that of a file.
        StoreUnusable: the extra ``aws`` is not installed.
    """
    return _defined(url, "terraform", layout)


def _defined(url: str, form: str, layout: Layout) -> dict[str, Any]:
    address = _parse_url(url)
    if address.scheme == "sqlite":
        raise _invalid_url(url, "a file needs no definition: opening it creates it")
    try:
        return getattr(_import_aws(url), form)(address.name, layout)
    except InvalidUrl as error:
        raise _invalid_url(url, str(error)) from None


def sqlite_paths(url: str) -> tuple[str, str]:
    """Return the file at an address, and the folder of its blobs.

    Raises:
        InvalidUrl: the address cannot be understood, or is not that of a file.
    """
    address = _parse_url(url)
    if address.scheme != "sqlite" or address.name == MEMORY:
        raise _invalid_url(url, "this operation needs a store in a file")
    return address.name, address.options.get("blobs") or f"{address.name}.blobs"


def is_in_memory(url: str) -> bool:
    """Return whether the store at an address is lost when the process ends.

    Raises:
        InvalidUrl: the address cannot be understood.
    """
    address = _parse_url(url)
    return address.scheme == "sqlite" and address.name == MEMORY


class _StoreAddress(msgspec.Struct, frozen=True):
    """The validated parts of a store's address."""

    url: str
    scheme: Literal["sqlite", "dynamodb"]
    name: str
    """The file, or the table."""
    options: dict[str, str]


def _parse_url(url: str) -> _StoreAddress:
    if not isinstance(url, str):
        raise _invalid_url(url, "it must be text")  # an unset environment variable is None
    if len(url) > _URL_LETTERS_MAX:
        told = f"a store's address must have at most {_URL_LETTERS_MAX} letters, got {len(url)}"
        raise InvalidUrl(told)
    if _CONTROL.search(url):  # urlsplit drops some of them, and would open another file
        raise _invalid_url(
            url, "it must not contain control characters; write %0A for a line break"
        )
    try:
        parts = urlsplit(url)
        host, path = parts.netloc, unquote(parts.path)
        options = _parse_options(url, parts.query)
    except (ValueError, TypeError, AttributeError) as error:
        raise _invalid_url(url, str(error)) from None
    if "#" in url or any("\0" in part for part in (host, path, *options.values())):
        raise _invalid_url(
            url, "it must not contain # or NUL; write %23 for # in the name of a file"
        )
    if "@" in host:
        raise _invalid_url(url, "it must not contain credentials")
    if _SURROGATE.search(url):
        raise _invalid_url(url, "it must be valid Unicode")
    if url != url.strip():  # urlsplit drops spaces before it, and a file would keep those behind
        raise _invalid_url(url, "it must not begin or end with a space")
    has_slashes = url[len(parts.scheme) + 1 :].startswith("//")
    match parts.scheme:
        case "sqlite" if path and not has_slashes:
            name = path.lstrip("/")
            raise _invalid_url(
                url,
                f"the name of a file must follow three slashes: sqlite:///{name}, and an absolute "
                f"path four: sqlite:////{name}",
            )
        case "sqlite":
            _check_options(url, options, _SQLITE_OPTIONS)
            if host and (host != MEMORY or path):
                raise _invalid_url(
                    url, f"the name of a file must follow three slashes: sqlite:///{host}{path}"
                )
            if not host and path in ("", "/"):
                raise _invalid_url(url, "it must name a file")
            return _StoreAddress(url, "sqlite", host or path.removeprefix("/"), options)
        case "dynamodb":
            _check_options(url, options, _DYNAMODB_OPTIONS)
            for name in _BUCKET_OPTIONS:
                if name in options and "bucket" not in options:
                    raise _invalid_url(url, f"the option {name!r} needs a bucket: &bucket=NAME")
            if not host or path not in ("", "/"):
                table = host or path.strip("/").partition("/")[0] or "runs"
                raise _invalid_url(
                    url,
                    "the name of the table must follow two slashes, and nothing else: "
                    f"dynamodb://{table}",
                )
            return _StoreAddress(url, "dynamodb", host, options)
        case "":
            file = f"; for a file write sqlite:///{url}" if url else ""
            raise _invalid_url(url, f"it must begin with sqlite: or dynamodb:{file}")
        case drive if len(drive) == 1:
            file = url.replace("\\", "/")
            raise _invalid_url(
                url, f"it must begin with sqlite: or dynamodb:; for a file write sqlite:///{file}"
            )
        case other:
            raise _invalid_url(url, f"it must begin with sqlite: or dynamodb:, not with {other!r}")


def _parse_options(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in options:
            raise _invalid_url(url, f"the option {name!r} must occur only once")
        options[name] = unquote(value)
    return options


def _open_sqlite(address: _StoreAddress, clock: Clock, layout: Layout, *, make: bool) -> Store:
    url, file, options = address.url, address.name, address.options
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StoreNotFound(f"cannot open {file}: the working folder was deleted") from None
    if file == MEMORY and "blobs" not in options:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-")
        blobs = FolderBlobs(Path(folder.name), clock=clock, on_close=folder.cleanup)
    else:
        folder = options.get("blobs")
        # A folder that the address names may contain other things: only our own files are private.
        blobs = FolderBlobs(Path(folder or f"{file}.blobs"), clock=clock, exclusive=folder is None)
        if make:  # a reader may do without the folder; a writer must fail now, not at its first put
            blobs.check()
    engine = SqliteEngine(
        file,
        layout=layout,
        clock=clock,
        changes=_parse_switch(url, options, "changes"),
        max_bytes=_parse_bytes(url, options, "max_bytes"),
        make=make,
    )
    meter = Meter(clock.monotonic)
    return Store(engine, Blobs(blobs, meter), url=url, meter=meter)


def _open_dynamodb(address: _StoreAddress, clock: Clock, layout: Layout) -> Store:
    options = address.options
    aws = _import_aws(address.url)
    place = {"region": options.get("region"), "profile": options.get("profile")}
    meter = Meter(clock.monotonic)
    engine = aws.DynamoEngine(
        address.name,
        **place,
        endpoint=options.get("endpoint"),
        layout=layout,
        clock=clock,
        on_retry=meter.record_retry,
    )
    if "bucket" not in options:
        return Store(engine, None, url=address.url, meter=meter)
    bucket = aws.S3Blobs(
        options["bucket"],
        **place,
        endpoint=options.get("bucket_endpoint"),
        kms_key=options.get("kms_key"),
        owner=options.get("bucket_owner"),
        clock=clock,
    )
    ownership = BucketOwner(Table(engine, meter, "settings"), bucket)
    blobs = Blobs(bucket, meter, before_call=ownership.load)
    return Store(engine, blobs, url=address.url, meter=meter, ownership=ownership)


def _import_aws(url: str) -> Any:
    """Import the AWS engines, which need the extra ``aws``, only when they are used."""
    try:
        from holdfast.storage.dynamodb import (
            DynamoEngine,
            cloudformation_template,
            terraform_definition,
        )
        from holdfast.storage.s3 import S3Blobs
    except ImportError as error:
        raise StoreUnusable(
            f"{url} needs boto3 and aiohttp: install the extra 'aws' ({error})"
        ) from error
    return SimpleNamespace(
        DynamoEngine=DynamoEngine,
        S3Blobs=S3Blobs,
        template=cloudformation_template,
        terraform=terraform_definition,
    )


def _check_options(url: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name, value in options.items():
        if name not in known:
            raise _invalid_url(url, f"there is no such option: {name!r}")
        if not value:
            raise _invalid_url(url, f"the option {name!r} must not be empty")


def _parse_switch(url: str, options: Mapping[str, str], name: str) -> bool | None:
    value = options.get(name)
    if value is not None and value not in _SWITCH:
        raise _invalid_url(url, f"{name} must be on or off, got {value!r}")
    return None if value is None else _SWITCH[value]


def _parse_bytes(url: str, options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is not None and (_BYTES.fullmatch(value) is None or int(value) == 0):
        raise _invalid_url(url, f"{name} must be a positive integer, in bytes, got {value!r}")
    return None if value is None else int(value)


def _invalid_url(url: object, reason: str) -> InvalidUrl:
    shown = without_credentials(repr(url))
    return InvalidUrl(
        f"cannot open {shown:.200}: {reason}. A store's address looks like this:\n{FORMS}"
    )
