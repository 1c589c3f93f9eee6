"""`DocumentFiles`: files of documents, stored in parts, streamed in and out."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast.documents.file_parts import Chunks, PartBuffer, chunks_of
from holdfast.documents.local_files import chunks_of_file, open_regular_file
from holdfast.documents.outside_files import OutsideFiles
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    BlobDamaged,
    BlobNotFound,
    FileTooLarge,
    HoldfastError,
    InvalidRequest,
    StoredFileNotFound,
)
from holdfast.model.document import DocumentPlace
from holdfast.model.names import validated_tenant
from holdfast.model.upload import StoredFile
from holdfast.records.document_file import (
    FILE_PART_BYTES,
    FILE_PARTS_MAX,
    FileKey,
    FileManifest,
    FilePart,
    blob_uri,
    manifest_of,
    parsed_blob_uri,
    parsed_file_key,
    place_of_uri,
)
from holdfast.storage import BlobRef, Blobs

__all__ = ["DocumentFiles", "DocumentPlaces", "validated_file_name"]

_NAME_BYTES_MAX = 512


class DocumentPlaces(Protocol):
    """Where the blobs of documents go: the part of `Documents` that files need."""

    def place(self, id: str | None = None, *, tenant: str | None = None) -> DocumentPlace:
        """Return the place of a document that is not added yet."""
        ...

    async def blob_prefix(self, id: str, *, tenant: str | None = None) -> str:
        """Return the prefix of the blobs of a document."""
        ...


class DocumentFiles:
    """The content of documents: files in parts, and small blobs, each below its document's prefix.

    A file is written and read part by part, so that memory does not grow with it. Its address has
    the hash of its manifest, and the manifest those of its parts: a reader gets the very bytes that
    were put, or an error.
    """

    def __init__(
        self,
        kernel: Kernel,
        tenant: str,
        *,
        places: DocumentPlaces,
        outside: OutsideFiles | None = None,
    ) -> None:
        self._kernel = kernel
        self._tenant = tenant
        self._places = places
        self.outside = outside or OutsideFiles()
        """The buckets besides the store's from which files may be read."""

    # --- writing ----------------------------------------------------------------------------------

    async def put(
        self,
        chunks: Chunks,
        *,
        name: str,
        place: DocumentPlace | None = None,
        document: str | None = None,
        file_type: str = "",
        bytes_max: int | None = None,
        tenant: str | None = None,
    ) -> StoredFile:
        """Store a file and return its address. It is durable when this returns.

        It is stored below the prefix of an existing ``document``, or at the ``place`` of one that
        is added next; without either, at a new place, which `place_of` returns. If it fails, the
        parts that were stored are deleted.

        Raises:
            FileTooLarge: there are more bytes than ``bytes_max``.
            InvalidRequest: the name or the chunks are not valid, or both places are given.
            DocumentNotFound: there is no such ``document``.
        """
        name = validated_file_name(name)
        key = await self._new_file(place, document, tenant)
        buffer = PartBuffer(FILE_PART_BYTES, bytes_max=bytes_max)
        parts: list[FilePart] = []
        whole = hashlib.sha256()

        async def store(part: bytes) -> None:
            if len(parts) >= FILE_PARTS_MAX:
                raise FileTooLarge(f"a file must have at most {FILE_PARTS_MAX:,} parts")
            await asyncio.to_thread(whole.update, part)
            parts.append(await self.put_part(key, part))

        try:
            async with aclosing(chunks_of(chunks)) as arriving:
                async for chunk in arriving:
                    for part in buffer.add(chunk):
                        await store(part)
            if (rest := buffer.take()) or not parts:
                await store(rest)
            manifest = FileManifest(
                name=name,
                type=file_type,
                bytes=buffer.bytes,
                sha256=whole.hexdigest(),
                parts=tuple(parts),
            )
            return await self.put_manifest(key, manifest)
        except BaseException:
            await self._discard(key)
            raise

    async def put_path(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        place: DocumentPlace | None = None,
        document: str | None = None,
        bytes_max: int | None = None,
        tenant: str | None = None,
    ) -> StoredFile:
        """Store a file of this machine; see `put`.

        Raises:
            OSError: the file cannot be read.
            FileTooLarge, InvalidRequest, DocumentNotFound: as `put` raises them.
        """
        opened = await asyncio.to_thread(open_regular_file, path)
        try:
            return await self.put(
                chunks_of_file(opened),
                name=Path(path).name if name is None else name,
                place=place,
                document=document,
                bytes_max=bytes_max,
                tenant=tenant,
            )
        finally:
            await asyncio.to_thread(opened.close)

    async def put_blob(
        self,
        data: bytes,
        *,
        name: str,
        document: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
    ) -> str:
        """Store a small blob of a document under a name, in place of any before it.

        Returns its address, for `read_blob`. ``prefix`` is what `Documents.blob_prefix` returned,
        and saves a read.

        Raises:
            InvalidRequest: pass either ``document`` or ``prefix``; or the name is not valid.
            DocumentNotFound: there is no such document.
        """
        if (document is None) is (prefix is None):
            raise InvalidRequest("pass either document or prefix", field="document")
        owner = self._tenant_or_default(tenant)
        if prefix is None:
            prefix = await self._places.blob_prefix(document or "", tenant=owner)
        elif not prefix.startswith(f"documents/{owner}/") or not prefix.endswith("/"):
            raise InvalidRequest(
                f"prefix must be that of a document of tenant {owner!r}, got {prefix!r:.200}",
                field="prefix",
            )
        return blob_uri(await self._blobs.put(data, key=f"{prefix}{name}"))

    # --- reading ----------------------------------------------------------------------------------

    async def get(self, uri: str, *, tenant: str | None = None) -> StoredFile:
        """Return what is known of a file, without its content.

        Raises:
            StoredFileNotFound: the tenant has no such file.
            BlobDamaged: its manifest is damaged.
        """
        owner = self._tenant_or_default(tenant)
        if self.outside.serves(uri):
            return await self.outside.get(uri)
        ref = parsed_blob_uri(uri, owner)
        return _stored_file(ref, await self._manifest(ref))

    async def read(self, uri: str, *, tenant: str | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file, part by part.

        Each part is verified before it is yielded, and the whole at the end.

        Raises:
            StoredFileNotFound: the tenant has no such file.
            BlobDamaged: a part is damaged or missing.
        """
        owner = self._tenant_or_default(tenant)
        if self.outside.serves(uri):
            async for chunk in self.outside.read(uri):
                yield chunk
            return
        ref = parsed_blob_uri(uri, owner)
        manifest = await self._manifest(ref)
        key = parsed_file_key(ref)
        async for data in self.read_parts(key, manifest.parts, sha256=manifest.sha256):
            yield data

    async def download(
        self, uri: str, path: str | os.PathLike[str], *, tenant: str | None = None
    ) -> StoredFile:
        """Write a file to this machine. The path has the whole file afterwards, or what it had.

        Raises:
            StoredFileNotFound: the tenant has no such file.
            BlobDamaged: a part is damaged or missing.
            OSError: the path cannot be written.
        """
        found = await self.get(uri, tenant=tenant)
        target = Path(path)
        # In the same folder, because a rename across file systems is no rename.
        partial = target.with_name(f".{self._kernel.ids.new()}.part")
        opened = await asyncio.to_thread(partial.open, "xb")
        try:
            try:
                async with aclosing(self.read(uri, tenant=tenant)) as parts:
                    async for data in parts:
                        await asyncio.to_thread(opened.write, data)
                await asyncio.to_thread(_sync_file, opened)
            finally:
                opened.close()
            await asyncio.to_thread(os.replace, partial, target)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        return found

    async def read_blob(self, uri: str, *, tenant: str | None = None) -> bytes:
        """Return a small blob of a document of the tenant.

        Raises:
            StoredFileNotFound: the tenant has no such blob.
            BlobDamaged: it is not what was put.
        """
        ref = parsed_blob_uri(uri, self._tenant_or_default(tenant))
        return await self._get(ref)

    def place_of(self, file: StoredFile, *, tenant: str | None = None) -> DocumentPlace:
        """Return the place below which a file is stored, for `Documents.add`.

        Raises:
            StoredFileNotFound: it is no file of the tenant.
        """
        return DocumentPlace(*place_of_uri(file.uri, self._tenant_or_default(tenant)))

    async def delete(self, uri: str, *, tenant: str | None = None) -> None:
        """Delete a file; do nothing where it is gone.

        Raises:
            StoredFileNotFound: it is no address of a file of the tenant.
        """
        key = parsed_file_key(parsed_blob_uri(uri, self._tenant_or_default(tenant)))
        # The manifest first: what has a manifest has all of its parts.
        await self._blobs.delete_all(key.manifest_prefix)
        await self._blobs.delete_all(key.prefix)

    # --- parts ------------------------------------------------------------------------------------

    async def put_part(self, key: FileKey, data: bytes) -> FilePart:
        """Store one part of a file under a new id."""
        id = self._kernel.ids.new()
        ref = await self._blobs.put(data, key=key.part_key(id))
        return FilePart(id, ref.size, ref.sha256)

    async def put_manifest(self, key: FileKey, manifest: FileManifest) -> StoredFile:
        """Store the manifest of a file; again with the same parts, it is the same blob."""
        ref = await self._blobs.put(manifest.encoded(), prefix=key.manifest_prefix)
        return _stored_file(ref, manifest)

    async def read_parts(
        self, key: FileKey, parts: tuple[FilePart, ...], *, sha256: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the verified parts of a file; at the end, verify the whole against a hash.

        Raises:
            BlobDamaged: a part is damaged or missing, or the whole is not what was put.
        """
        whole = hashlib.sha256()
        for part in parts:
            ref = key.part_ref(part)
            try:
                data = await self._blobs.get(ref)
            except BlobNotFound:
                raise BlobDamaged(f"the part {ref.key!r:.300} is missing", key=ref.key) from None
            if sha256 is not None:
                await asyncio.to_thread(whole.update, data)
            yield data
        if sha256 is not None and whole.hexdigest() != sha256:
            raise BlobDamaged(f"the file {key.prefix!r:.300} is damaged", key=key.prefix)

    async def delete_parts(self, key: FileKey) -> None:
        """Delete everything of a file."""
        await self._blobs.delete_all(key.prefix)

    async def discard_part(self, key: FileKey, part: FilePart) -> None:
        """Delete a part that does not count; a sweep finds it if that fails."""
        with suppress(HoldfastError):
            await self._blobs.delete(key.part_key(part.id))

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _blobs(self) -> Blobs:
        return self._kernel.store.blobs.with_purpose("documents")

    def _tenant_or_default(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else validated_tenant(tenant)

    async def _new_file(
        self, place: DocumentPlace | None, document: str | None, tenant: str | None
    ) -> FileKey:
        if place is not None and document is not None:
            raise InvalidRequest("pass either place or document, not both", field="place")
        owner = self._tenant_or_default(tenant)
        file = self._kernel.ids.new()
        if document is not None:
            prefix = await self._places.blob_prefix(document, tenant=owner)
            return FileKey(document, prefix, file)
        place = place or self._places.place(tenant=owner)
        return FileKey(place.id, place.prefix, file)

    async def _manifest(self, ref: BlobRef) -> FileManifest:
        parsed_file_key(ref)
        return manifest_of(await self._get(ref), ref.key)

    async def _get(self, ref: BlobRef) -> bytes:
        try:
            return await self._blobs.get(ref)
        except BlobNotFound:
            raise StoredFileNotFound(f"the blob {ref.key!r:.300} is gone") from None

    async def _discard(self, key: FileKey) -> None:
        with suppress(HoldfastError):
            await self._blobs.delete_all(key.prefix)


def validated_file_name(name: object) -> str:
    """Return the name of a file: its last part, if it is a path.

    Raises:
        InvalidRequest: it is not text, or is empty, too long, or has control characters.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"name must be text, got {type(name).__name__}", field="name")
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    try:
        size = len(last.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("name must not contain lone surrogates", field="name") from None
    if last in ("", ".", "..") or size > _NAME_BYTES_MAX or not _is_plain(last):
        raise InvalidRequest(
            f"name must be the name of a file: 1 to {_NAME_BYTES_MAX} bytes without control "
            f"characters, got {name!r:.80}",
            field="name",
        )
    return last


def _stored_file(ref: BlobRef, manifest: FileManifest) -> StoredFile:
    return StoredFile(
        uri=blob_uri(ref),
        name=manifest.name,
        bytes=manifest.bytes,
        sha256=manifest.sha256,
        document=parsed_file_key(ref).document,
    )


def _is_plain(name: str) -> bool:
    return not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in name)


def _sync_file(opened: BinaryIO) -> None:
    opened.flush()
    os.fsync(opened.fileno())
