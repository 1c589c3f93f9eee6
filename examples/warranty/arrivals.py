"""How documents arrive: by a drop into a folder, by an upload, and by an event of S3."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast import Graph, Holdfast, RunHandle
from holdfast.integrations.aws_lambda import s3_objects
from warranty.documents import LOCAL_BUCKET, Warranty, document_of, labels_of, tenant_of
from warranty.folder import DocumentFolder
from warranty.reading import FILE_BYTES_MAX

__all__ = ["Arrivals", "FolderWatch", "InvalidArrival"]

_KEY_BYTES_MAX = 1_024  # as in S3
# What programs call a file while they write it.
_UNFINISHED = (".crdownload", ".part", ".partial", ".swp", ".tmp", "~")


class InvalidArrival(ValueError):
    """This cannot be a document: its name or its size is wrong."""


class Arrivals:
    """Starts one run for each version of a document, however often it arrives."""

    def __init__(self, hf: Holdfast, graph: Graph[Warranty], folder: DocumentFolder) -> None:
        self._hf, self._graph, self._folder = hf, graph, folder

    async def add_file(
        self, path: Path, *, key: str | None = None, tenant: str | None = None
    ) -> RunHandle[Warranty]:
        """Add a file of this machine. Its key is its name, unless another one is given.

        Raises:
            InvalidArrival: the file is empty or too large, or the key is invalid.
            OSError: the file cannot be read.
        """
        data = await asyncio.to_thread(_read_bounded, path)
        return await self.add_upload(path.name if key is None else key, data, tenant=tenant)

    async def add_upload(
        self, key: str, data: bytes, *, tenant: str | None = None
    ) -> RunHandle[Warranty]:
        """Add a document from its content. The tenant follows from the key, unless it is given.

        Raises:
            InvalidArrival: the content is empty or too large, or the key is invalid.
        """
        if not 0 < len(data) <= FILE_BYTES_MAX:
            raise InvalidArrival(
                f"{key!r:.200} must have from 1 to {FILE_BYTES_MAX:,} bytes, got "
                f"{'more' if len(data) > FILE_BYTES_MAX else len(data)}"
            )
        _check_key(key)
        version = await asyncio.to_thread(self._folder.save, data)
        return await self._start(Warranty(LOCAL_BUCKET, key, version), tenant)

    async def add_s3_event(self, event: object) -> list[RunHandle[Warranty]]:
        """Add the objects that an event of S3 announces. An event may come more than once.

        The Lambda function of `warranty.functions` starts the same runs for the same event.

        Raises:
            InvalidRequest: this is no event of S3.
        """
        documents = [document_of(each) for each in s3_objects(event)]
        return [await self._start(each, None) for each in documents]

    async def _start(self, document: Warranty, tenant: str | None) -> RunHandle[Warranty]:
        return await self._hf.start(
            self._graph,
            document,
            id=document.id,
            tenant=tenant or tenant_of(document.key),
            labels=labels_of(document.key),
        )


class FolderWatch:
    """Finds the files of a folder that are complete.

    A file is complete when two looks in a row find the same size and the same time of change. Each
    look takes a complete file once. The same content under the same name is the same version, so a
    second start of the watcher, or a second drop, starts no second run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}
        self._taken: dict[Path, tuple[int, int]] = {}

    async def look(self, arrivals: Arrivals) -> list[RunHandle[Warranty]]:
        """Look once, and add the files that are complete.

        A file that cannot be a document is left where it is, and not looked at again.
        """
        started: list[RunHandle[Warranty]] = []
        for path in self._complete_files():
            key = path.relative_to(self._folder).as_posix()
            try:
                started.append(await arrivals.add_file(path, key=key))
            except FileNotFoundError:
                self._taken.pop(path, None)  # moved away in this moment
            except (InvalidArrival, PermissionError) as error:
                print(f"left {key!r:.200}: {error}")
        return started

    def _complete_files(self) -> list[Path]:
        now = dict(self._scan())
        complete = [
            path
            for path, mark in now.items()
            if self._seen.get(path) == mark and self._taken.get(path) != mark
        ]
        self._taken = {path: mark for path, mark in self._taken.items() if path in now}
        self._taken.update((path, now[path]) for path in complete)
        self._seen = now
        return sorted(complete)

    def _scan(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for place, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if name.startswith(".") or name.endswith(_UNFINISHED):
                    continue
                path = Path(place, name)
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue
                # Not a link: it could lead to a file that its owner never dropped here.
                if stat.S_ISREG(found.st_mode) and found.st_size:
                    yield path, (found.st_size, found.st_mtime_ns)


def _read_bounded(path: Path) -> bytes:
    """Return the content of a file, or one byte too many of it."""
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not 0 < len(key.encode(errors="replace")) <= _KEY_BYTES_MAX:
        raise InvalidArrival(
            f"key must be a string of 1 to {_KEY_BYTES_MAX:,} bytes, got {key!r:.80}"
        )
