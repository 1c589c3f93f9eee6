"""`UploadReceiver`: stores what one request adds to an upload.

A part counts once its blob is durable and one transaction has moved the offset past it. The
transaction requires that no other request has taken the upload over. So a part is stored whole or
not at all, and what an answer acknowledges survives the process.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing

from holdfast.documents.checksums import Checksum
from holdfast.documents.file_parts import Chunks, PartBuffer, chunks_of
from holdfast.documents.file_types import HEAD_BYTES, Sniff
from holdfast.documents.files import DocumentFiles
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    FileTooLarge,
    HoldfastError,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionCancelled,
    UploadConflict,
)
from holdfast.records.document_file import FILE_PART_BYTES, FILE_PARTS_MAX, FilePart
from holdfast.records.upload import StoredUpload, part_writes, upload_part_key, upload_part_of
from holdfast.storage import Table

__all__ = ["UploadReceiver"]

_SNIFF_BYTES_MIN = 4096


class UploadReceiver:
    """Receives the bytes of one request, which has taken the upload over."""

    def __init__(
        self,
        kernel: Kernel,
        files: DocumentFiles,
        upload: StoredUpload,
        *,
        table: Table,
        sniff: Sniff,
        checksum: Checksum | None,
    ) -> None:
        self._kernel = kernel
        self._files = files
        self._table = table
        self._sniff = sniff
        self._checksum = checksum
        # SHA-1 finds accidents here, and protects from no attacker.
        self._hasher = (
            None if checksum is None else hashlib.new(checksum.algorithm, usedforsecurity=False)
        )
        self._unverified: list[FilePart] = []
        self._buffer = PartBuffer(FILE_PART_BYTES, bytes_max=upload.length - upload.offset)
        self.upload = upload
        """The upload after the last part that counts."""

    async def receive(self, chunks: Chunks) -> StoredUpload:
        """Store everything that arrives; return the upload after it.

        If the bytes stop arriving, what has come is stored, unless it has a checksum.

        Raises:
            FileTooLarge: more arrives than the upload has left, or it is in too many pieces.
            FileRejected: the first bytes are those of a file that is not accepted.
            ChecksumMismatch: the bytes are not those that were sent; none of them is stored.
            UploadConflict: another request has taken the upload over.
        """
        try:
            await self._receive_all(chunks)
            if self._checksum is not None and self._hasher is not None:
                self._checksum.check(self._hasher.digest())
                await self._count_verified()
            return self.upload
        finally:
            for part in self._unverified:
                await self._files.discard_part(self.upload.file_key, part)

    async def _receive_all(self, chunks: Chunks) -> None:
        try:
            async with aclosing(chunks_of(chunks)) as arriving:
                async for chunk in arriving:
                    for part in self._buffer.add(chunk):
                        await self._store(part)
        except HoldfastError as error:
            if error.retryable and self._checksum is None and (rest := self._buffer.take()):
                await self._store(rest)
            raise
        if rest := self._buffer.take():
            await self._store(rest)

    async def _store(self, data: bytes) -> None:
        upload = self.upload
        if upload.parts + len(self._unverified) >= FILE_PARTS_MAX:
            raise FileTooLarge(
                f"an upload must have at most {FILE_PARTS_MAX:,} pieces: send larger ones"
            )
        if upload.offset == 0 and not self._unverified:
            self._check_head(data)
        if self._hasher is not None:
            await asyncio.to_thread(self._hasher.update, data)
        part = await self._files.put_part(upload.file_key, data)
        if self._checksum is None:
            await self._count(part)
        else:
            self._unverified.append(part)

    def _check_head(self, data: bytes) -> None:
        """Refuse a file as soon as its first bytes tell what it is.

        Raises:
            FileRejected: it is not accepted.
        """
        if len(data) >= min(_SNIFF_BYTES_MIN, self.upload.length):
            self._sniff(data[:HEAD_BYTES], self.upload.name)

    async def _count_verified(self) -> None:
        while self._unverified:
            await self._count(self._unverified[0])
            self._unverified.pop(0)

    async def _count(self, part: FilePart) -> None:
        """Move the offset past a part.

        Raises:
            UploadConflict: another request has taken the upload over; the part does not count.
        """
        after, writes = part_writes(self.upload, part, now_ms=self._kernel.clock.now_ms())
        try:
            await self._kernel.resolve_transaction(self._table, writes)
        except TransactionCancelled as cancelled:
            # An attempt whose answer was lost may have been carried out.
            if not await self._is_counted(part):
                if part not in self._unverified:
                    await self._files.discard_part(self.upload.file_key, part)
                raise UploadConflict(
                    f"upload {self.upload.id!r} was continued or removed by another request: ask "
                    "where it stands, and send the rest"
                ) from cancelled
        except (OutcomeUnknown, StoreUnavailable):
            # It may count. If it does not, a sweep finds its blob.
            if part in self._unverified:
                self._unverified.remove(part)
            raise
        self.upload = after

    async def _is_counted(self, part: FilePart) -> bool:
        place = upload_part_key(self.upload.tenant, self.upload.id, self.upload.parts)
        item = await self._table.get(place)
        return item is not None and upload_part_of(item)[1].id == part.id
