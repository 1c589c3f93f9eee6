"""The files that workers keep at hand: downloaded once, bounded, and never deleted in use."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from documents.cache import CacheFull, FileCache


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".used"}


def marks(path: Path) -> tuple[int, int]:
    return path.stat().st_mtime_ns, path.stat().st_ctime_ns


def set_used(path: Path, age: float) -> None:
    os.utime(f"{path}.used", (age * 1e6, age * 1e6))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Source:
    """Downloads one content, and counts how often."""

    def __init__(self, content: bytes) -> None:
        self.content, self.downloads = content, 0
        self.sha256 = digest(content)

    async def download(self, path: Path) -> None:
        self.downloads += 1
        await asyncio.to_thread(path.write_bytes, self.content)

    async def read(self, cache: FileCache) -> bytes:
        async with cache.opened(self.sha256, len(self.content), self.download) as path:
            return await asyncio.to_thread(path.read_bytes)


async def test_a_file_is_downloaded_once_however_many_ask(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path / "cache", bytes_max=1_000), Source(b"content")
    assert await asyncio.gather(*(source.read(cache) for _ in range(10))) == [b"content"] * 10
    # Another process of the machine finds it, too.
    assert await source.read(FileCache(tmp_path / "cache", bytes_max=1_000)) == b"content"
    assert source.downloads == 1
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


async def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, bytes_max=250)
    sources = [Source(bytes([number]) * 100) for number in range(3)]
    for age, source in ((30, sources[0]), (20, sources[1])):
        await source.read(cache)
        set_used(tmp_path / source.sha256, age)
    set_used(tmp_path / sources[0].sha256, 40)
    await sources[2].read(cache)
    assert files(tmp_path) == {sources[0].sha256, sources[2].sha256}


async def test_a_use_does_not_change_the_file(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path, bytes_max=1_000), Source(b"content")
    async with cache.opened(source.sha256, 7, source.download) as path:
        before = os.stat(path)
        await source.read(cache)
        assert (before.st_mtime_ns, before.st_ctime_ns) == marks(path)


async def test_a_file_in_use_is_not_deleted(tmp_path: Path) -> None:
    cache, used, other = FileCache(tmp_path, bytes_max=150), Source(b"a" * 100), Source(b"b" * 100)
    elsewhere = FileCache(tmp_path, bytes_max=150)
    async with cache.opened(used.sha256, 100, used.download) as path:
        with pytest.raises(CacheFull, match="in use"):
            await other.read(elsewhere)
        assert path.read_bytes() == used.content
    assert await other.read(elsewhere) == other.content
    assert not path.exists()


async def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache, source = FileCache(tmp_path, bytes_max=1_000), Source(b"content")

    async def fail(path: Path) -> None:
        await asyncio.to_thread(path.write_bytes, b"cont")
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError):
        async with cache.opened(source.sha256, 7, fail):
            raise AssertionError
    assert files(tmp_path) == set()
    assert await source.read(cache) == b"content"


def ended_process() -> int:
    told = (sys.executable, "-c", "import os; print(os.getpid())")
    return int(subprocess.run(told, capture_output=True, check=True).stdout)


async def test_what_a_killed_process_left_is_deleted(tmp_path: Path) -> None:
    left = tmp_path / f"{'0' * 64}.{ended_process()}.part"
    left.write_bytes(b"x" * 100)
    alive = tmp_path / f"{'1' * 64}.{os.getpid()}.part"
    alive.write_bytes(b"x" * 10)
    await Source(b"c" * 100).read(FileCache(tmp_path, bytes_max=150))
    assert not left.exists()
    assert alive.exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a" * 63, "A" * 64])
async def test_only_a_digest_names_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="sha256 must be"):
        async with FileCache(tmp_path, bytes_max=10).opened(name, 1, _never):
            raise AssertionError


async def test_a_file_larger_than_the_cache_is_refused(tmp_path: Path) -> None:
    source = Source(b"x" * 200)
    with pytest.raises(CacheFull, match="DOCUMENTS_CACHE_BYTES"):
        await source.read(FileCache(tmp_path, bytes_max=100))
    assert source.downloads == 0


_never: Callable[[Path], Awaitable[object]] = Source(b"").download
