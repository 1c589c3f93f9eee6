"""`DocumentUploads`: documents on their way in, from a file in pieces or from an address."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.display import get_logger
from holdfast.documents.checksums import Checksum
from holdfast.documents.file_parts import Chunks
from holdfast.documents.file_types import HEAD_BYTES, Sniff, file_type_of, validated_media_type
from holdfast.documents.files import DocumentFiles, validated_file_name
from holdfast.documents.local_files import chunks_of_file, open_regular_file
from holdfast.documents.upload_finishing import DocumentIntake, Pipelines, UploadFinisher
from holdfast.documents.upload_receiver import UploadReceiver
from holdfast.documents.web_addresses import page_name, validated_web_address
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    FileRejected,
    FileTooLarge,
    HoldfastError,
    InvalidRequest,
    UploadConflict,
    UploadGone,
    UploadNotFound,
    UploadsBusy,
)
from holdfast.model.document import DocumentPlace
from holdfast.model.names import validated_name, validated_tenant
from holdfast.model.upload import Upload, UploadSweep
from holdfast.records.index_keys import due_by
from holdfast.records.upload import (
    UPLOADS,
    StoredUpload,
    begin_append_write,
    create_upload_write,
    due_upload_of,
    postpone_upload_write,
    stored_upload_of,
    upload_key,
)

__all__ = ["DocumentUploads"]

_log = get_logger("holdfast.documents")

_LIFETIME_MS = 24 * 3_600_000
_FILE_BYTES_MAX = 1024**3
_RECEIVES_MAX = 32
_RETRY_MS = 60_000
_PAGE = 100
_ATTEMPTS = 5


class DocumentUploads:
    """Takes documents in: each becomes a document, a workflow and a run, exactly once.

    The record of an upload names the ids of all three before anything is stored. A process that
    dies leaves the record, and the next request for the upload, or a sweep, goes on with it.
    """

    def __init__(
        self, kernel: Kernel, tenant: str, *, files: DocumentFiles, documents: DocumentIntake
    ) -> None:
        self._kernel = kernel
        self._tenant = tenant
        self._files = files
        self._documents = documents
        self._table = kernel.store.records("upload")
        self._finisher = UploadFinisher(kernel, files, documents, table=self._table)
        self._receiving = 0
        self.pipelines: Pipelines | None = None
        """What starts the runs; see `start_pipelines`."""
        self.sniff: Sniff = file_type_of
        """Says the type of a file by its first bytes, or rejects it."""
        self.file_bytes_max = _FILE_BYTES_MAX
        """The largest file that is accepted."""
        self.receives_max = _RECEIVES_MAX
        """How many files this process receives at a time; each holds up to two parts in memory."""

    # --- ways in ----------------------------------------------------------------------------------

    async def create(
        self,
        project: str,
        *,
        name: str,
        length: int,
        file_type: str = "",
        id: str | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Begin an upload of ``length`` bytes, which `append` adds. It expires after a day.

        The id is the idempotency key: again with the same values, it is the same upload.

        Raises:
            ProjectNotFound: there is no such project.
            UnknownGraph: this process does not know the pipeline of the project.
            FileTooLarge: the file has more than ``file_bytes_max`` bytes.
            FileRejected: the file is empty.
            AlreadyExists: the id is that of an upload with other values.
            InvalidName, InvalidRequest: an argument is not valid.
        """
        self._check_length(length, name)
        made = await self._record(project, name, tenant=tenant, id=id, length=length)
        return (await self._create(made, file_type=validated_media_type(file_type))).shown()

    async def append(
        self,
        id: str,
        chunks: Chunks,
        *,
        offset: int,
        checksum: Checksum | None = None,
        size: int | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Add bytes to an upload at an offset; after the last ones, the document is processed.

        ``size`` is how many bytes the sender announces: too many are refused at once.

        The request takes the upload over from any that still sends. Nothing counts before it is
        durable. If the bytes stop arriving, what has come counts, unless they have a ``checksum``.

        Raises:
            UploadConflict: the upload does not continue at this offset, or another request has
                taken it over.
            UploadNotFound, UploadGone: there is no such upload any more.
            UploadsBusy: this process receives too many files.
            FileTooLarge, FileRejected, ChecksumMismatch: the bytes cannot be accepted.
        """
        upload = self._checked(await self._load(id, tenant))
        if upload.status != "open" and offset == upload.offset:
            return (await self._finish(upload)).shown()
        if upload.status != "open" or offset != upload.offset:
            raise UploadConflict(
                f"upload {id!r} continues at byte {upload.offset:,}, got bytes from {offset:,}"
            )
        if size is not None and size > upload.length - offset:
            raise FileTooLarge(
                f"upload {id!r} has {upload.length - offset:,} bytes left, got {size:,}"
            )
        async with self._receive_slot():
            taken = await self._take_over(upload)
            receiver = UploadReceiver(
                self._kernel,
                self._files,
                taken,
                table=self._table,
                sniff=self.sniff,
                checksum=checksum,
            )
            try:
                received = await receiver.receive(chunks)
            except FileRejected as error:
                with suppress(UploadGone):
                    await self._finisher.reject(receiver.upload, error)
                raise
        if received.status == "complete":
            received = await self._finish(received)
        return received.shown()

    async def add_path(
        self,
        project: str,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        id: str | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Upload a file of this machine. With the same ``id``, it goes on where it was cut.

        Raises:
            OSError: the file cannot be read.
            UploadConflict: another process uploads it under the same id.
            ProjectNotFound, UnknownGraph, FileTooLarge, FileRejected: as `create` raises them.
        """
        opened = await asyncio.to_thread(open_regular_file, path)
        try:
            size = await asyncio.to_thread(lambda: os.fstat(opened.fileno()).st_size)
            upload = await self.create(
                project,
                name=Path(path).name if name is None else name,
                length=size,
                id=id,
                tenant=tenant,
            )
            await asyncio.to_thread(opened.seek, upload.offset)
            if upload.status == "rejected":
                raise FileRejected(upload.error)
            return await self.append(
                upload.id, chunks_of_file(opened), offset=upload.offset, tenant=tenant
            )
        finally:
            await asyncio.to_thread(opened.close)

    async def add_source(
        self,
        project: str,
        *,
        address: str | None = None,
        uri: str | None = None,
        name: str | None = None,
        id: str | None = None,
        tenant: str | None = None,
    ) -> Upload:
        """Take in a web page with what it links to (``address``), or an object of S3 (``uri``).

        Raises:
            InvalidRequest: neither or both are given, it is no such address, or its bucket is not
                permitted.
            StoredFileNotFound: there is no such object.
            ProjectNotFound, UnknownGraph, FileTooLarge, FileRejected: as `create` raises them.
        """
        if (address is None) is (uri is None):
            given = "neither" if address is None else "both"
            raise InvalidRequest(f"pass either address or uri, got {given}", field="address")
        if address is not None:
            source = validated_web_address(address)
            made = await self._record(
                project, name or page_name(source), tenant=tenant, id=id, source=source
            )
            return await self._take_in(made, file_type="text/html")
        source = uri or ""
        if not self._files.outside.serves(source):
            raise InvalidRequest(f"uri must be s3://bucket/key, got {source!r:.200}", field="uri")
        self._files.outside.check(source)
        found = await self._files.outside.get(source)
        self._check_length(found.bytes, found.name)
        made = await self._record(
            project, name or found.name, tenant=tenant, id=id, source=source, length=found.bytes
        )
        head = b""
        async for chunk in self._files.outside.read(source):
            head = chunk[:HEAD_BYTES]
            break
        return await self._take_in(made, file_type=self.sniff(head, made.name))

    async def process_again(
        self, document: str, *, id: str | None = None, tenant: str | None = None
    ) -> Upload:
        """Begin another workflow of a document, and start its run.

        Raises:
            DocumentNotFound: there is no such document.
            UnknownGraph: this process does not know the pipeline of its project.
        """
        owner = self._tenant_or_default(tenant)
        found = await self._documents.get(document, tenant=owner)
        made = await self._record(
            found.project, found.file_name, tenant=owner, id=id, document=document
        )
        return await self._take_in(made, file_type=found.file_type)

    # --- one upload -------------------------------------------------------------------------------

    async def get(self, id: str, *, tenant: str | None = None) -> Upload:
        """Return an upload. One that is complete is finished first, if this process can.

        Raises:
            UploadNotFound, UploadGone: there is no such upload any more.
        """
        upload = self._checked(await self._load(id, tenant), rejected=True)
        if upload.status == "complete" and self.pipelines is not None:
            with suppress(HoldfastError):  # a sweep tries again
                upload = await self._finish(upload, rejected=True)
        return upload.shown()

    async def terminate(self, id: str, *, tenant: str | None = None) -> None:
        """Remove an upload that is not complete, with all that it has stored.

        Raises:
            UploadNotFound: there is no such upload.
            UploadConflict: it is complete, so that its document is what can be deleted.
        """
        upload = await self._load(id, tenant)
        for _ in range(_ATTEMPTS):
            if upload.status in ("complete", "processed"):
                raise UploadConflict(
                    f"upload {id!r} is complete: delete the document {upload.document!r} instead"
                )
            try:
                await self._finisher.remove(upload)
            except UploadGone:
                upload = await self._load(id, tenant)
                continue
            return

    async def finish(self, id: str, *, tenant: str | None = None) -> Upload:
        """Process a complete upload that another process left; do nothing for another one.

        Raises:
            UploadNotFound, UploadGone: there is no such upload any more.
            FileRejected: the file is not accepted.
            UnknownGraph: this process does not know the pipeline of the project.
        """
        upload = self._checked(await self._load(id, tenant))
        return (await self._finish(upload) if upload.status == "complete" else upload).shown()

    async def sweep(self) -> UploadSweep:
        """Remove the uploads that have expired, and finish those whose process died.

        Servers do it every minute. Several may do it at once.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        removed = finished = failed = 0
        cursor: str | None = None
        while True:
            due = due_by(self._kernel.clock.now_ms())
            page = await self._table.query(UPLOADS, due, index="GSI1", limit=_PAGE, cursor=cursor)
            for entry in page.items:
                outcome = await self._sweep_one(*due_upload_of(entry))
                removed += outcome == "removed"
                finished += outcome == "finished"
                failed += outcome == "failed"
            cursor = page.cursor
            if cursor is None:
                return UploadSweep(removed=removed, finished=finished, failed=failed)

    # --- inside -----------------------------------------------------------------------------------

    async def _sweep_one(self, tenant: str, id: str) -> str:
        item = await self._table.get(upload_key(tenant, id))
        now_ms = self._kernel.clock.now_ms()
        upload = None if item is None else stored_upload_of(item)
        # The index may lag.
        if upload is None or upload.is_ended or upload.due_ms > now_ms:
            return "ended"
        try:
            if upload.status != "complete":
                await self._finisher.remove(upload)
                return "removed"
            if self.pipelines is None:
                return "failed"
            await self._finisher.finish(upload, self.pipelines, sniff=self.sniff)
        except UploadGone:
            return "ended"
        except HoldfastError as error:
            _log.warning("upload %s of tenant %s is not finished: %s", id, tenant, error)
            with suppress(HoldfastError):
                await self._table.write(postpone_upload_write(upload, now_ms=now_ms))
            return "failed"
        return "finished"

    async def _take_in(self, made: StoredUpload, *, file_type: str) -> Upload:
        upload = await self._create(made, file_type=file_type)
        if upload.status == "complete":
            upload = await self._finish(upload)
        return upload.shown()

    async def _record(
        self,
        project: str,
        name: str,
        *,
        tenant: str | None,
        id: str | None,
        length: int = 0,
        source: str = "",
        document: str | None = None,
    ) -> StoredUpload:
        """Return the record of a new upload, after all checks that need no content."""
        owner = self._tenant_or_default(tenant)
        found = await self._documents.projects.get(project, tenant=owner)
        self._started().check(found)
        now_ms, ids = self._kernel.clock.now_ms(), self._kernel.ids
        is_complete = bool(source or document)
        place = (
            self._documents.place(tenant=owner)
            if document is None
            else DocumentPlace(document, "-", "-")
        )
        expires_ms = now_ms + _LIFETIME_MS
        return StoredUpload(
            id=ids.new() if id is None else validated_name(id, "id"),
            tenant=owner,
            project=found.id,
            status="complete" if is_complete else "open",
            name=validated_file_name(name),
            file_type="",
            length=length,
            offset=length if is_complete else 0,
            document=place.id,
            generation=place.generation,
            document_prefix=place.prefix,
            file=ids.new(),
            workflow=ids.new(),
            source=source,
            again=document is not None,
            created_ms=now_ms,
            expires_ms=expires_ms,
            due_ms=now_ms + _RETRY_MS if is_complete else expires_ms,
        )

    async def _create(self, made: StoredUpload, *, file_type: str) -> StoredUpload:
        """Store a new upload, or return the one that has its id and its values.

        Raises:
            AlreadyExists: the one with its id has other values.
        """
        made = msgspec.structs.replace(made, file_type=file_type)
        write = create_upload_write(made, token=self._kernel.ids.new())
        try:
            await self._kernel.resolve_write(self._table, write)
            return made
        except ConditionFailed as refused:
            if refused.item is None:
                raise
            found = stored_upload_of(refused.item)
        if _asked(found) != _asked(made):
            raise AlreadyExists(
                "the id was used before, for another file, name or project: it belongs to the "
                f"upload {made.id!r}"
            )
        return self._checked(found, rejected=True)

    async def _take_over(self, upload: StoredUpload) -> StoredUpload:
        writer = self._kernel.ids.new()
        write = begin_append_write(upload, writer=writer)
        try:
            item = await self._kernel.resolve_write(self._table, write)
        except ConditionFailed:
            raise UploadConflict(
                f"upload {upload.id!r} was continued or removed by another request: ask where it "
                "stands, and send the rest"
            ) from None
        return stored_upload_of(item)

    async def _finish(self, upload: StoredUpload, *, rejected: bool = False) -> StoredUpload:
        if upload.status != "complete":
            return self._checked(upload, rejected=rejected)
        ended = await self._finisher.finish(upload, self._started(), sniff=self.sniff)
        return self._checked(ended, rejected=rejected)

    async def _load(self, id: str, tenant: str | None) -> StoredUpload:
        owner, id = self._tenant_or_default(tenant), validated_name(id, "id")
        item = await self._table.get(upload_key(owner, id))
        if item is None:
            raise UploadNotFound(f"there is no upload {id!r} of tenant {owner!r}")
        return stored_upload_of(item)

    def _checked(self, upload: StoredUpload, *, rejected: bool = False) -> StoredUpload:
        is_expired = upload.status == "open" and upload.expires_ms <= self._kernel.clock.now_ms()
        if upload.status == "removing" or is_expired:
            raise UploadGone(f"upload {upload.id!r} has expired or was terminated")
        if upload.status == "rejected" and not rejected:
            raise FileRejected(upload.error)
        return upload

    def _started(self) -> Pipelines:
        if self.pipelines is None:
            raise InvalidRequest(
                "this process has no pipelines of documents: call start_pipelines(hf, graphs)"
            )
        return self.pipelines

    def _check_length(self, length: object, name: str) -> None:
        if type(length) is not int or length < 0:
            raise InvalidRequest(
                f"length must be the number of bytes of the file, got {length!r:.80}",
                field="length",
            )
        if length > self.file_bytes_max:
            raise FileTooLarge(
                f"a file must have at most {self.file_bytes_max:,} bytes, got {length:,}",
                field="length",
            )
        if length == 0:
            raise FileRejected(f"{name!r:.200} is empty")

    @asynccontextmanager
    async def _receive_slot(self) -> AsyncGenerator[None]:
        if self._receiving >= self.receives_max:
            raise UploadsBusy(f"this process receives {self.receives_max} files already")
        self._receiving += 1
        try:
            yield
        finally:
            self._receiving -= 1

    def _tenant_or_default(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else validated_tenant(tenant)


def _asked(upload: StoredUpload) -> tuple[object, ...]:
    """Return what the caller of an upload asked for."""
    source = upload.document if upload.again else upload.source
    return upload.project, upload.again, source, upload.length
