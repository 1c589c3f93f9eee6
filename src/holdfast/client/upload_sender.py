"""`UploadSender`: sends a file in pieces, and goes on after cut connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import read
from holdfast.client.responses import json_of
from holdfast.documents.local_files import open_regular_file
from holdfast.errors import (
    ChecksumMismatch,
    FileRejected,
    InvalidRequest,
    ServerUnavailable,
    UploadConflict,
    UploadInterrupted,
    UploadsBusy,
)
from holdfast.model.upload import Upload

__all__ = ["UploadSender"]

_PIECE_BYTES = 4 * 1024**2
_TUS = {"Tus-Resumable": "1.0.0"}
_PIECE_TYPE = "application/offset+octet-stream"
# After these, the upload goes on where it stands.
_PASSING = (ServerUnavailable, UploadConflict, UploadInterrupted, UploadsBusy, ChecksumMismatch)


class UploadSender:
    """Sends one file over one connection, as tus 1.0.0 says."""

    def __init__(self, connection: ServerConnection, *, tenant: str | None) -> None:
        self._connection = connection
        self._tenant = tenant

    async def send(
        self, path: str | os.PathLike[str], *, project: str, name: str | None, key: str | None
    ) -> Upload:
        """Upload a file, and return the upload when its document is processed.

        Raises:
            OSError: the file cannot be read.
            InvalidRequest: it is not a file, it became shorter meanwhile, or the name is empty.
            FileRejected, FileTooLarge: the server does not accept the file.
            ServerUnavailable: the server did not answer in time; the same call goes on.
        """
        if name is not None and not name.strip():
            raise InvalidRequest(f"name must not be empty, got {name!r:.80}", field="name")
        opened = await asyncio.to_thread(open_regular_file, path)
        try:
            size = await asyncio.to_thread(lambda: os.fstat(opened.fileno()).st_size)
            shown = Path(path).name if name is None else name
            upload = await self._create(project, shown, size, key)
            return await self._send_rest(opened, upload)
        finally:
            await asyncio.to_thread(opened.close)

    async def _create(self, project: str, name: str, size: int, key: str | None) -> Upload:
        told = {"project": project, "filename": name}
        encoded = {
            word: base64.b64encode(value.encode(errors="replace")).decode()
            for word, value in told.items()
        }
        headers = {
            **_TUS,
            "Upload-Length": str(size),
            "Upload-Metadata": ",".join(f"{word} {value}" for word, value in encoded.items()),
            # A repetition of the request must not begin two.
            "Idempotency-Key": self._connection.ids.new() if key is None else key,
        }
        response = await self._connection.exchange(
            "uploads_create", headers=headers, tenant=self._tenant
        )
        return read(Upload, json_of(response))

    async def _send_rest(self, opened: BinaryIO, upload: Upload) -> Upload:
        backoff = self._connection.backoff()
        while upload.status == "open":
            piece = await asyncio.to_thread(_read_at, opened, upload.offset)
            if not piece:
                raise InvalidRequest(
                    f"the file must not change while it is sent: it ends at byte "
                    f"{upload.offset:,}, and had {upload.length:,}",
                    field="path",
                )
            try:
                await self._append(upload, piece)
                backoff.reset()
            except _PASSING as error:
                waited = getattr(error, "retry_after_seconds", None)
                if not await backoff.wait(waited):
                    raise
            before, upload = upload.offset, await self._get(upload.id)
            if upload.offset > before:
                backoff.reset()
        if upload.status == "rejected":
            raise FileRejected(upload.error)
        return upload

    async def _append(self, upload: Upload, piece: bytes) -> None:
        digest = await asyncio.to_thread(lambda: hashlib.sha256(piece).digest())
        headers: Mapping[str, str] = {
            **_TUS,
            "Content-Type": _PIECE_TYPE,
            "Upload-Offset": str(upload.offset),
            "Upload-Checksum": f"sha256 {base64.b64encode(digest).decode()}",
        }
        await self._connection.exchange(
            "uploads_append",
            names={"id": upload.id},
            content=piece,
            headers=headers,
            tenant=self._tenant,
        )

    async def _get(self, id: str) -> Upload:
        names = {"id": id}
        shown = await self._connection.call("uploads_get", names=names, tenant=self._tenant)
        return read(Upload, shown)


def _read_at(opened: BinaryIO, offset: int) -> bytes:
    opened.seek(offset)
    return opened.read(_PIECE_BYTES)
