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
        os.utime(tmp_path / source.sha256, (age * 1e6, age * 1e6))
    os.utime(tmp_path / sources[0].sha256, (40e6, 40e6))
    await sources[2].read(cache)
    assert {path.name for path in tmp_path.iterdir()} == {sources[0].sha256, sources[2].sha256}


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
        path.write_bytes(b"cont")
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError):
        async with cache.opened(source.sha256, 7, fail):
            raise AssertionError
    assert list(tmp_path.iterdir()) == []
    assert await source.read(cache) == b"content"


async def test_what_a_killed_process_left_is_deleted(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    left = tmp_path / f"{'0' * 64}.{int(killed.stdout)}.part"
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
