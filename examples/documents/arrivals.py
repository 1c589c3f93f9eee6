"""How documents arrive from this machine: files and folders by name, and drops into a folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast import Holdfast
from holdfast.errors import HoldfastError
from holdfast.model.upload import Upload

__all__ = ["Arrivals", "FolderWatch"]

DEFAULT_PROJECT = "default"
_READ_BYTES = 1024**2
# What programs call a file while they write it.
_UNFINISHED = (".crdownload", ".part", ".partial", ".swp", ".tmp", "~")


class Arrivals:
    """Adds documents to one project, each version of a file once."""

    def __init__(self, hf: Holdfast, project: str = DEFAULT_PROJECT) -> None:
        self._hf, self._project = hf, project

    async def prepare(self) -> None:
        """Create the default project, if it is the one that is used.

        Raises:
            ProjectNotFound: there is no project of the id that was given.
        """
        projects = self._hf.documents.projects
        if self._project == DEFAULT_PROJECT:
            await projects.create("Documents", id=DEFAULT_PROJECT)
        await projects.get(self._project)

    async def add_file(self, path: Path, *, name: str | None = None) -> Upload:
        """Add a file. The same content under the same name is the same document.

        Raises:
            FileRejected: it is of no type that the pipeline reads.
            OSError: the file cannot be read.
        """
        name = path.name if name is None else name
        digest = await asyncio.to_thread(_digest, path, name)
        uploads = self._hf.documents.uploads
        return await uploads.add_path(self._project, path, name=name, id=digest)

    async def add_address(self, address: str) -> Upload:
        """Add a site to crawl, or an object of S3.

        Raises:
            InvalidRequest: the address is not valid, or not permitted.
        """
        uploads = self._hf.documents.uploads
        if address.startswith("s3://"):
            return await uploads.add_source(self._project, uri=address)
        return await uploads.add_source(self._project, address=address)


class FolderWatch:
    """Finds the files of a folder that are complete.

    A file is complete when two looks in a row find the same size and the same time of change. Each
    look takes a complete file once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}
        self._taken: dict[Path, tuple[int, int]] = {}

    async def look(self, arrivals: Arrivals) -> list[Upload]:
        """Look once, and add the files that are complete.

        A file that cannot be a document is left where it is, and not looked at again.
        """
        added: list[Upload] = []
        for path in self._complete_files():
            name = path.relative_to(self._folder).as_posix()
            try:
                added.append(await arrivals.add_file(path, name=name))
            except FileNotFoundError:
                self._taken.pop(path, None)  # moved away in this moment
            except (HoldfastError, PermissionError) as error:
                print(f"left {name!r:.200}: {error}")
        return added

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


def _digest(path: Path, name: str) -> str:
    """Return an id that follows from the name and the content of a file."""
    digest = hashlib.sha256(f"{name}\0".encode(errors="replace"))
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()[:32]
