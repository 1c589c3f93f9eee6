"""`FileForm`: a form with a file, which is passed on as it arrives and never kept whole."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from urllib.parse import unquote

from litestar.exceptions import ClientException, HTTPException

from holdfast.server.request_body import RequestBody

__all__ = ["FileForm"]

_BOUNDARY = re.compile(r"multipart/form-data *; *boundary=\"?([0-9A-Za-z'()+_,./:=?-]{1,70})\"?")
_PARAMETER = re.compile(r'; *(name|filename)="([^"\r\n]*)"')
# What may stand before the content of the file.
_HEAD_BYTES_MAX = 64 * 1024
_TYPE_CHARS_MAX = 128


class FileForm:
    """Texts, and after them one file: what a browser sends for a form with a file.

    A form does not say how long its file is. But the file is the last part, so that its length
    follows from that of the request.
    """

    def __init__(self, body: RequestBody, content_type: str) -> None:
        """Both are those of the request. Another type is answered with 415."""
        found = _BOUNDARY.fullmatch(content_type.strip())
        if found is None:
            raise HTTPException(
                f"the body must be multipart/form-data, got {content_type!r:.80}", status_code=415
            )
        if body.size is None:
            raise HTTPException("the request must say how long it is", status_code=411)
        self.fields: dict[str, str] = {}
        """The texts, by their names."""
        self.file_name = ""
        """The name of the file without folders; empty if none was chosen."""
        self.file_type = ""
        self._size = body.size
        self._chunks = body.chunks()
        self._delimiter = b"\r\n--" + found[1].encode()
        self._buffer = b"\r\n"  # before the first delimiter, too
        self._passed = -2

    @property
    def file_bytes(self) -> int:
        """How long the file is."""
        return self._size - self._passed - len(self._last)

    async def open(self) -> None:
        """Read the texts, up to the content of the file. What is no such form is a 400."""
        await self._take(self._delimiter)
        while True:
            if await self._take(b"\r\n") != b"":
                raise _incomplete()
            headers = (await self._take(b"\r\n\r\n")).decode(errors="replace")
            named = dict(_PARAMETER.findall(headers))
            if "filename" in named:
                self.file_name = re.split(r"[/\\]", _decoded(named["filename"]))[-1]
                kind = re.search(r"(?im)^content-type: *([^\r\n]*)", headers)
                self.file_type = "" if kind is None else kind[1].strip()[:_TYPE_CHARS_MAX]
                return
            text = await self._take(self._delimiter)
            self.fields[named.get("name", "")] = text.decode(errors="replace")

    async def content(self) -> AsyncGenerator[bytes, None]:
        """Yield the file. The last piece comes after the end of the form was seen."""
        left = self.file_bytes
        held, self._buffer = self._buffer, b""
        while len(held) < left + len(self._last):
            chunk = await anext(self._chunks, None)
            if chunk is None:
                raise _incomplete()
            if held and len(held) < left:
                yield held
                left -= len(held)
                held = b""
            held += chunk
        if held[left:] != self._last:
            raise _incomplete()
        if left:
            yield held[:left]

    async def drain(self, bytes_max: int) -> None:
        """Read what is left, up to a limit: a browser reads no answer while it still sends."""
        async for chunk in self._chunks:
            bytes_max -= len(chunk)
            if bytes_max < 0:
                return

    @property
    def _last(self) -> bytes:
        return self._delimiter + b"--\r\n"

    async def _take(self, end: bytes) -> bytes:
        """Return what stands before an end, and go on after it."""
        while (at := self._buffer.find(end)) < 0:
            chunk = await anext(self._chunks, None)
            if chunk is None or self._passed + len(self._buffer) > _HEAD_BYTES_MAX:
                raise _incomplete()
            self._buffer += chunk
        found, self._buffer = self._buffer[:at], self._buffer[at + len(end) :]
        self._passed += at + len(end)
        return found


def _decoded(name: str) -> str:
    """Return a file name as it was before the browser replaced quotes and line ends."""
    for replaced in ("%22", "%0D", "%0A"):
        name = name.replace(replaced, unquote(replaced))
    return name


def _incomplete() -> ClientException:
    return ClientException("the form did not arrive completely; open the page again")
