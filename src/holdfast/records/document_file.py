"""The blobs of files: parts, and a manifest that lists them.

A file is below the prefix of its document:
``documents/{tenant}/{document}/{generation}/file/{file}/``, where ``file`` is a UUIDv7. A part is
``parts/{part}``, also with a UUIDv7, so that two writers of one upload never write the same blob.
The manifest is ``manifest/{sha256}``, with its own hash.

The address of a blob is ``blob:{key}?sha256={hash}&bytes={size}``: a reader needs no item to read
and verify it.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from holdfast.errors import BlobDamaged, StoredFileNotFound
from holdfast.storage import BlobRef

__all__ = [
    "FILE_PARTS_MAX",
    "FILE_PART_BYTES",
    "FileKey",
    "FileManifest",
    "FilePart",
    "blob_uri",
    "manifest_of",
    "parsed_blob_uri",
    "parsed_file_key",
    "place_of_uri",
]

FILE_PART_BYTES = 4 * 1024**2
"""The size of a part; the last one, and those of interrupted requests, are smaller."""
FILE_PARTS_MAX = 10_000

_UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_MANIFEST_KEY = re.compile(
    rf"(documents/([^/#]+)/([^/#]+)/({_UUID7})/)file/({_UUID7})/manifest/[0-9a-f]{{64}}"
)
_URI = re.compile(r"blob:([^?#]{1,3072})\?sha256=([0-9a-f]{64})&bytes=([0-9]{1,10})")


class FileKey(NamedTuple):
    """Identifies one file of a document."""

    document: str
    document_prefix: str
    """The prefix of all blobs of the document."""
    file: str
    """A UUIDv7."""

    @property
    def prefix(self) -> str:
        """The prefix of its blobs."""
        return f"{self.document_prefix}file/{self.file}/"

    @property
    def manifest_prefix(self) -> str:
        """The prefix of its manifest, whose key ends with its hash."""
        return f"{self.prefix}manifest/"

    def part_ref(self, part: FilePart) -> BlobRef:
        """Return the reference to a part."""
        return BlobRef(self.part_key(part.id), part.sha256, part.size)

    def part_key(self, id: str) -> str:
        """Return the key of a part."""
        return f"{self.prefix}parts/{id}"


class FilePart(msgspec.Struct, frozen=True, array_like=True):
    """One part of a file."""

    id: str
    """A UUIDv7."""
    size: int
    sha256: str


class FileManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest of a file says."""

    name: str
    type: str
    bytes: int
    sha256: str
    parts: tuple[FilePart, ...]

    def encoded(self) -> bytes:
        """Return the manifest as it is stored: equal manifests are equal bytes."""
        return msgspec.json.encode(self)


def manifest_of(data: bytes, key: str) -> FileManifest:
    """Return the manifest in a blob.

    Raises:
        BlobDamaged: it is not a manifest, or its parts do not add up.
    """
    try:
        manifest = msgspec.json.decode(data, type=FileManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BlobDamaged(f"blob {key!r:.300} is not a manifest: {error}", key=key) from None
    if sum(part.size for part in manifest.parts) != manifest.bytes:
        raise BlobDamaged(f"the parts of the manifest {key!r:.300} do not add up", key=key)
    return manifest


def blob_uri(ref: BlobRef) -> str:
    """Return the address of a blob."""
    return f"blob:{quote(ref.key, safe='/')}?sha256={ref.sha256}&bytes={ref.size}"


def parsed_blob_uri(uri: object, tenant: str) -> BlobRef:
    """Return the reference in an address of a blob below a tenant's documents.

    Raises:
        StoredFileNotFound: it is no such address, or another tenant's.
    """
    found = _URI.fullmatch(uri) if isinstance(uri, str) else None
    key = "" if found is None else unquote(found[1])
    if found is None or not key.startswith(f"documents/{tenant}/") or "/../" in key:
        raise StoredFileNotFound(f"there is no file {uri!r:.300} of tenant {tenant!r}")
    return BlobRef(key, found[2], int(found[3]))


def parsed_file_key(ref: BlobRef) -> FileKey:
    """Return the file whose manifest has this reference.

    Raises:
        StoredFileNotFound: the blob is not a manifest.
    """
    found = _MANIFEST_KEY.fullmatch(ref.key)
    if found is None:
        raise StoredFileNotFound(f"the blob {ref.key!r:.300} is not the manifest of a file")
    return FileKey(found[3], found[1], found[5])


def place_of_uri(uri: object, tenant: str) -> tuple[str, str, str]:
    """Return the document, the generation and the prefix in the address of a file.

    Raises:
        StoredFileNotFound: it is no address of a file of the tenant.
    """
    key = parsed_file_key(parsed_blob_uri(uri, tenant))
    return key.document, key.document_prefix.split("/")[3], key.document_prefix
