"""`OutsideFiles`: files in buckets of S3 that are not the store's, where they are permitted."""

# boto3 has no types. Its responses are Any in this module.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote, unquote

from holdfast.errors import InvalidRequest, StoredFileNotFound, StoreUnavailable
from holdfast.model.upload import StoredFile

__all__ = ["OutsideFiles", "s3_uri"]

_URI = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([^?]{1,3072})(?:\?versionId=(.{1,1024}))?"
)
_READ_BYTES = 1024**2
_MISSING = ("404", "NoSuchKey", "NoSuchVersion", "NoSuchBucket", "403", "AccessDenied")


class OutsideFiles:
    """Reads objects from permitted buckets; without any bucket, it refuses every address.

    The addresses come from callers, and the credentials are those of this process: a caller must
    not be able to read another bucket through it.
    """

    def __init__(self, buckets: tuple[str, ...] = (), *, client: Any = None) -> None:
        """``client`` is a client of boto3 for S3, by default that of the environment."""
        self._buckets = frozenset(buckets)
        self._client = client

    def permit(self, buckets: tuple[str, ...]) -> None:
        """Permit further buckets."""
        self._buckets |= frozenset(buckets)

    def serves(self, uri: object) -> bool:
        """Return whether an address is one of S3, whatever its bucket."""
        return isinstance(uri, str) and uri.startswith("s3://")

    def check(self, uri: str) -> None:
        """Check that an address may be read.

        Raises:
            InvalidRequest: it is no address of an object, or its bucket is not permitted.
        """
        self._parsed(uri)

    async def get(self, uri: str) -> StoredFile:
        """Return what S3 says of an object. The hash is empty: only its content tells it.

        Raises:
            InvalidRequest: its bucket is not permitted.
            StoredFileNotFound: there is no such object, or it may not be read.
            StoreUnavailable: S3 does not answer.
        """
        where = self._parsed(uri)
        found = await self._call("head_object", where)
        name = where["Key"].rpartition("/")[2]
        size = int(found["ContentLength"])
        return StoredFile(uri=uri, name=name, bytes=size, sha256="", document="")

    async def read(self, uri: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of an object.

        Raises:
            InvalidRequest: its bucket is not permitted.
            StoredFileNotFound: there is no such object, or it may not be read.
            StoreUnavailable: S3 does not answer, or stopped.
        """
        found = await self._call("get_object", self._parsed(uri))
        body: Any = found["Body"]
        left = int(found["ContentLength"])
        try:
            while chunk := await asyncio.to_thread(_read_some, body, uri):
                left -= len(chunk)
                yield chunk
        finally:
            body.close()
        if left:
            raise StoreUnavailable(f"{uri!r:.200} ended before its last byte")

    def _parsed(self, uri: str) -> dict[str, str]:
        found = _URI.fullmatch(uri)
        if found is None:
            raise InvalidRequest(
                "uri must be s3://bucket/key, with a bucket of 3 to 63 characters (a-z, 0-9, '.' "
                f"and '-'), got {uri!r:.200}",
                field="uri",
            )
        if found[1] not in self._buckets:
            known = ", ".join(sorted(self._buckets)) or "none"
            raise InvalidRequest(
                f"files of the bucket {found[1]!r} may not be read; permitted buckets: {known}. "
                "A server permits those of ServerOptions(document_buckets=…)",
                field="uri",
            )
        where = {"Bucket": found[1], "Key": unquote(found[2])}
        return {**where, "VersionId": unquote(found[3])} if found[3] else where

    async def _call(self, operation: str, where: dict[str, str]) -> Any:
        def call() -> Any:
            try:
                import botocore.exceptions as aws
            except ImportError:
                raise InvalidRequest(
                    "files in S3 need boto3: pip install 'holdfast[aws]'", field="uri"
                ) from None
            try:
                return getattr(self._s3(), operation)(**where)
            except aws.ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                if code in _MISSING:
                    raise StoredFileNotFound(
                        f"there is no object {where['Key']!r:.300} in {where['Bucket']}, or it "
                        f"may not be read ({code})"
                    ) from None
                raise StoreUnavailable(f"S3 refused to read a file: {code}") from error
            except aws.BotoCoreError as error:
                raise StoreUnavailable(f"S3 cannot be reached: {error}") from error

        return await asyncio.to_thread(call)

    def _s3(self) -> Any:
        if self._client is None:
            import boto3

            self._client = boto3.client("s3")
        return self._client


def s3_uri(bucket: str, key: str, version: str = "") -> str:
    """Return the address of an object, which `OutsideFiles` reads."""
    uri = f"s3://{bucket}/{quote(key, safe='/')}"
    return f"{uri}?versionId={quote(version, safe='')}" if version else uri


def _read_some(body: Any, uri: str) -> bytes:
    try:
        return body.read(_READ_BYTES)
    except Exception as error:  # urllib3 and botocore raise a dozen kinds when a connection breaks
        raise StoreUnavailable(f"{uri!r:.200} cannot be read on: {error}") from error
