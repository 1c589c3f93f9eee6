"""`FolderBlobs`: blobs as files in one folder, which several processes may share.

The blob ``a/b.pdf`` is the file ``a~/b.pdf``, see `names`. What does not read back so was not put
by us: it is neither listed nor deleted. Links are never followed. Only the owner can read what is
there.

Where the file system takes ``Acme`` and ``acme`` for one name, a new folder is marked with
``.folding``, and its names are hashed. One that was filled there before has no mark and plain
names: it is read and written as before, but its names do not tell whose a blob is.

A blob is written to ``.writing/``, synced and then renamed, so that it is there as a whole or not
at all. There are no locks, since a process may stall while it holds one; instead a put whose folder
was freed at the same moment makes it anew.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.display import get_logger
from holdfast.errors import (
    AccessDenied,
    HoldfastError,
    InvalidBlobKey,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from holdfast.storage.blobs import (
    BLOB_SEGMENTS_MAX,
    BlobContent,
    BlobEntry,
    BlobPage,
    validate_blob_key,
)
from holdfast.storage.file_names import FileNames, probe_name_folding

__all__ = ["FolderBlobs", "store_error"]

_log = get_logger("holdfast.storage")

THREADS = 4
LEFTOVER_SECONDS = 24 * 3600
"""A file that was being written so long ago was left behind by a crash."""
ATTEMPTS_MAX = 100
"""How often a put makes anew what others remove while it is under way."""

_SCRATCH = b".writing"
_FOLDING_MARK = b".folding"
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
_PLAIN_NAMES, _HASHED_NAMES = FileNames(hashed=False), FileNames(hashed=True)

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, to open a named pipe would wait for somebody who writes into it.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME_TAKEN = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


class FolderBlobs:
    """Blobs in a folder, which is made by the first put."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        on_close: Callable[[], object] | None = None,
        exclusive: bool = False,
    ) -> None:
        """Take the folder; ``own`` is whether nothing else is in it, so that it can be private."""
        self._root = Path(os.path.abspath(folder))
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds(self._clock)
        self._on_close = on_close
        self.name = f"folder {self._root}"
        self.threads = THREADS
        self._scratch_cleared = False
        self._names_lock = threading.Lock()
        self._names: FileNames | None = None
        self._keys_are_exact = True
        self._must_make_private = exclusive

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close()

    def write(self, key: str, data: bytes, sha256: str) -> None:
        with self._translate_errors(writing=True):
            for _ in range(ATTEMPTS_MAX):
                try:
                    self._write_once(key, data)
                except FileNotFoundError:
                    continue  # somebody freed the folder between our making and our using it
                return
        raise StoreUnavailable(f"the folder of blob {key!r} in {self._root} is being deleted")

    def _write_once(self, key: str, data: bytes) -> None:
        self._make_root()
        with self._open_root() as root, _open_or_create_folder(root, [_SCRATCH]) as scratch:
            folders, name = self._choose_names(root, scratch).path_of(key)
            self._clear_old_scratch(scratch)
            partial = self._ids.new().encode()
            try:
                _write_file(scratch, partial, data)
                with _open_or_create_folder(root, folders) as folder:
                    os.replace(partial, name, src_dir_fd=scratch, dst_dir_fd=folder)
                    os.fsync(folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial, dir_fd=scratch)
                raise

    def check(self) -> None:
        """Look whether the folder can be used, if it is there.

        Raises:
            StoreUnusable: it is a file, or may not be read.
        """
        # It stays as open to others as it is: the file beside it may be no store of ours.
        with (
            self._translate_errors(writing=False),
            suppress(FileNotFoundError),
            self._open_root(make_private=False),
        ):
            pass

    def confirm_stored(self, key: str, size: int, sha256: str) -> bool:
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            folders, name = self._load_names(root).path_of(key)
            with _open_folder(root, folders) as folder:
                if _read_size(folder, name) == size and _hash_file(folder, name) == sha256:
                    os.fsync(folder)  # whoever put it may not have come this far
                    return True
        return False

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        with (
            self._translate_errors(writing=False),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            folders, name = self._load_names(root).path_of(key)
            with _open_folder(root, folders) as folder:
                return _read_file(folder, name, bytes_max)
        return None

    def delete(self, key: str) -> None:
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            folders, name = self._load_names(root).path_of(key)
            with _open_folder(root, folders) as folder:
                if _read_size(folder, name) is None:
                    return
                os.unlink(name, dir_fd=folder)
                os.fsync(folder)
            _remove_empty_parents(root, folders)

    def delete_all(self, prefix: str) -> int:
        deleted = 0
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            names = self._load_names(root)
            *above, last = names.folders(prefix)
            with _open_folder(root, above) as parent:
                deleted = _delete_tree(parent, last, prefix.encode(), names)
                os.fsync(parent)
            _remove_empty_parents(root, above)
        return deleted

    def list_page(self, prefix: str, after: str | None, limit: int) -> BlobPage:
        above, slash, start = prefix.rpartition("/")
        base = above + slash
        entries: list[BlobEntry] = []
        with (
            self._translate_errors(writing=False),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            names = self._load_names(root)
            with _open_folder(root, names.folders(base)) as folder:
                begin = (base.encode(), start.encode(), (after or "").encode())
                # Closed, since it holds folders open wherever it stops.
                with closing(_walk(folder, *begin, names)) as walk:
                    entries = list(islice(walk, limit + 1))
        more = len(entries) > limit
        return BlobPage(entries[:limit], entries[limit - 1].key if more else None)

    def remove_leftovers(self, before_ms: int) -> int:
        removed = 0
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            with suppress(FileNotFoundError), _open_folder(root, [_SCRATCH]) as scratch:
                removed += _clear_scratch(scratch, before_ms / 1000)
            removed += _prune_empty_folders(root, 0, before_ms / 1000, self._load_names(root))
        return removed

    def create(self) -> None:
        with self._translate_errors(writing=True):
            self._make_root()
            with self._open_root():
                pass

    def list_owned_names(self) -> list[str]:
        """Return the names in the folder that are ours alone: folders, and the mark.

        A file there may be another program's.
        """
        with (
            self._translate_errors(writing=False),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            names = self._load_names(root)
            ours = [names.name(part) for part in _list_parts(root, names) if part.endswith(b"/")]
            ours = [name for name in ours if _is_folder(root, name)]
            return [os.fsdecode(name) for name in ([_FOLDING_MARK] if names.hashed else []) + ours]
        return []

    def probe_exact_keys(self) -> bool:
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
            _open_or_create_folder(root, [_SCRATCH]) as scratch,
        ):
            self._choose_names(root, scratch)
        return self._keys_are_exact

    def _load_names(self, root: int) -> FileNames:
        """Return how what is there is named; nothing is there before it is settled."""
        if self._names is not None:
            return self._names
        return _HASHED_NAMES if _exists(root, _FOLDING_MARK) else _PLAIN_NAMES

    def _choose_names(self, root: int, scratch: int) -> FileNames:
        """Return how names are made here; who comes first to an empty folder settles it."""
        with self._names_lock:
            if self._names is None:
                self._names = self._detect_names(root, scratch)
            return self._names

    def _detect_names(self, root: int, scratch: int) -> FileNames:
        if _exists(root, _FOLDING_MARK):
            return _HASHED_NAMES
        if not _probe_name_folding(scratch, self._ids.new().encode()):
            return _PLAIN_NAMES
        is_new = all(name.startswith(".") for name in os.listdir(root))
        if is_new:
            with suppress(FileExistsError):  # another process may have been faster
                _write_file(root, _FOLDING_MARK, b"")
            os.fsync(root)
        if is_new or _exists(root, _FOLDING_MARK):  # it may have filled it since
            return _HASHED_NAMES
        self._keys_are_exact = False
        return _PLAIN_NAMES

    def _make_root(self) -> None:
        if self._root.exists():
            return
        missing = [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                folder.mkdir(PRIVATE_FOLDER)
                folder.chmod(PRIVATE_FOLDER)  # whatever the umask leaves out
            _fsync_folder(folder.parent)

    def _make_private(self, root: int) -> None:
        """Take the rights of others away from a folder of ours, once a process.

        One that is a link leads to a folder that may hold other things.
        """
        self._must_make_private = False
        found = os.fstat(root)
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077 and found.st_uid == os.geteuid() and not self._root.is_symlink():
            os.fchmod(root, mode & ~0o077)
            text = "%r was open to other users (mode %03o) and is now private"
            _log.warning(text, str(self._root), mode)

    @contextmanager
    def _open_root(self, *, make_private: bool = True) -> Generator[int]:
        try:
            root = os.open(self._root, _OPEN_FOLDER)
        except NotADirectoryError:
            raise StoreUnusable(f"{self._root} is not a folder; blobs need one") from None
        try:
            if self._must_make_private and make_private:
                self._make_private(root)
            yield root
        finally:
            os.close(root)

    def _clear_old_scratch(self, scratch: int) -> None:
        """Remove what crashes left behind, once a process.

        That another process is still writing such a file is all but impossible, and harmless: it
        then finds its file gone and writes it anew.
        """
        if self._scratch_cleared:
            return
        self._scratch_cleared = True
        _clear_scratch(scratch, self._clock.now_ms() / 1000 - LEFTOVER_SECONDS)

    @contextmanager
    def _translate_errors(self, *, writing: bool) -> Generator[None]:
        """Raise what the system says as an error of ours."""
        try:
            yield
        except OSError as error:
            raise store_error(error, f"the folder {self._root}", writing=writing) from error


def store_error(error: OSError, place: str, *, writing: bool) -> HoldfastError:
    """Return what the system says of a file or a folder as an error of ours."""
    reason = error.strerror or str(error)
    if error.errno in _FORBIDDEN:
        if writing:
            return StoreReadOnly(f"{place} may not be written: {reason}")
        return AccessDenied(f"{place} may not be read: {reason}")
    if error.errno in _FULL:
        return StoreFull(f"there is no room left for {place}: {reason}")
    if error.errno in _NAME_TAKEN:
        found = error.filename2 or error.filename
        what = os.fsdecode(found) if isinstance(found, str | bytes) else "something"
        return StoreUnusable(f"{place} cannot be used: {what} is in the way: {reason}")
    if error.errno in _EXHAUSTED:
        return StoreUnavailable(f"{place} cannot be used now: {reason}")
    return StoreUnusable(f"{place} cannot be used: {reason}")


def _decode_key(key: bytes) -> str | None:
    """Return a key as text, or None where it cannot be a blob's."""
    try:
        return validate_blob_key(key.decode())
    except (UnicodeDecodeError, InvalidBlobKey):
        return None


# Files and folders, each by its name within an open folder, so that no link is ever followed.


@contextmanager
def _open_folder(root: int, folders: Sequence[bytes]) -> Generator[int]:
    """Open a folder below another; FileNotFoundError also where it is a link or a file."""
    with _descend(root, folders, _open_existing) as folder:
        yield folder


@contextmanager
def _open_or_create_folder(root: int, folders: Sequence[bytes]) -> Generator[int]:
    """Open a folder below another, made if need be."""
    with _descend(root, folders, _open_or_create) as folder:
        yield folder


@contextmanager
def _descend(
    root: int, folders: Sequence[bytes], open_one: Callable[[int, bytes], int]
) -> Generator[int]:
    folder = os.dup(root)
    try:
        for name in folders:
            below = open_one(folder, name)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _open_existing(parent: int, name: bytes) -> int:
    try:
        return os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FileNotFoundError(errno.ENOENT, "no such folder", name) from None
        raise


def _open_or_create(parent: int, name: bytes) -> int:
    try:
        return os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, PRIVATE_FOLDER, dir_fd=parent)
            os.chmod(name, PRIVATE_FOLDER, dir_fd=parent)  # whatever the umask leaves out
        os.fsync(parent)
        return os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def _write_file(folder: int, name: bytes, data: bytes) -> None:
    file = os.open(name, _OPEN_NEW, PRIVATE_FILE, dir_fd=folder)
    try:
        os.fchmod(file, PRIVATE_FILE)  # whatever the umask leaves out
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def _read_file(folder: int, name: bytes, bytes_max: int) -> BlobContent | None:
    try:
        file = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return None
        raise
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > bytes_max:
            return BlobContent(found.st_size, None)
        with open(file, "rb", closefd=False) as opened:
            return BlobContent(found.st_size, opened.read())
    finally:
        os.close(file)


def _read_size(folder: int, name: bytes) -> int | None:
    """Return the size of a file, or None where there is no file of that name."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _hash_file(folder: int, name: bytes) -> str:
    with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=folder), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _walk(
    folder: int, base: bytes, start: bytes, after: bytes, names: FileNames
) -> Generator[BlobEntry]:
    """Yield what follows a key, below a folder that stands for ``base``, in the order of the keys.

    That is the order of their parts, level by level: ``a``, ``a-b``, ``a/``. Only what begins with
    ``start`` is looked at, and no folder all of whose keys come earlier.
    """
    if (after > base and not after.startswith(base)) or base.count(b"/") >= BLOB_SEGMENTS_MAX:
        return
    after_part = after[len(base) :] if after > base else b""
    parts = [
        part
        for part in _list_parts(folder, names)
        if part.startswith(start)
        and (part > after_part or (part.endswith(b"/") and after_part.startswith(part)))
    ]
    # A page needs the first few of what may be a million: a heap gives them without sorting all.
    heapq.heapify(parts)
    while parts:
        part = heapq.heappop(parts)
        key, name = base + part, names.name(part)
        if part.endswith(b"/"):
            with suppress(FileNotFoundError), _open_folder(folder, [name]) as below:
                yield from _walk(below, key, b"", after, names)
        elif (text := _decode_key(key)) is not None and (
            size := _read_size(folder, name)
        ) is not None:
            yield BlobEntry(text, size)


def _list_parts(folder: int, names: FileNames) -> Iterator[bytes]:
    """Yield what a folder holds, in no order, as parts of keys."""
    for name in os.listdir(folder):
        part = names.part(os.fsencode(name))
        if part is not None:
            yield part


def _delete_tree(parent: int, name: bytes, base: bytes, names: FileNames) -> int:
    """Delete the blobs below a folder, and the folder if nothing is left in it."""
    deleted = 0
    if base.count(b"/") >= BLOB_SEGMENTS_MAX:
        return deleted
    # Somebody else may be removing it at the same moment.
    with suppress(FileNotFoundError), _open_folder(parent, [name]) as folder:
        for part in _list_parts(folder, names):
            key, below = base + part, names.name(part)
            if part.endswith(b"/"):
                deleted += _delete_tree(folder, below, key, names)
            elif _decode_key(key) is not None and _read_size(folder, below) is not None:
                with suppress(FileNotFoundError):
                    os.unlink(below, dir_fd=folder)
                    deleted += 1
        if not _try_remove_folder(parent, name):
            os.fsync(folder)
    return deleted


def _clear_scratch(scratch: int, before: float) -> int:
    """Remove files that were being written before a time; return how many there were."""
    removed = 0
    for name in os.listdir(scratch):
        with suppress(OSError):  # others sweep as well, and tidiness is no reason to fail
            if os.stat(name, dir_fd=scratch, follow_symlinks=False).st_mtime < before:
                os.unlink(name, dir_fd=scratch)
                removed += 1
    return removed


def _prune_empty_folders(folder: int, depth: int, before: float, names: FileNames) -> int:
    """Remove the empty folders below a folder that nobody touched since a time; return how many.

    That a put is about to use one is harmless: it then finds it gone and makes it anew.
    """
    removed = 0
    if depth >= BLOB_SEGMENTS_MAX:
        return removed
    for part in _list_parts(folder, names):
        if not part.endswith(b"/"):
            continue
        name = names.name(part)
        with suppress(FileNotFoundError), _open_folder(folder, [name]) as below:
            # Asked first: to remove what is in it touches it.
            touched = os.fstat(below).st_mtime
            removed += _prune_empty_folders(below, depth + 1, before, names)
            if touched < before and _try_remove_folder(folder, name):
                os.fsync(folder)
                removed += 1
    return removed


def _remove_empty_parents(root: int, folders: Sequence[bytes]) -> None:
    """Remove a folder and those above it, as far up as they are empty."""
    for depth in range(len(folders), 0, -1):
        with _open_folder(root, folders[: depth - 1]) as parent:
            if not _try_remove_folder(parent, folders[depth - 1]):
                return
            os.fsync(parent)


def _try_remove_folder(parent: int, name: bytes) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise
    return True


def _exists(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_folder(folder: int, name: bytes) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _probe_name_folding(scratch: int, id: bytes) -> bool:
    """Return whether the file system takes two names for one."""
    made: list[bytes] = []

    def make(name: bytes) -> bool:
        try:
            os.close(os.open(name, _OPEN_NEW, PRIVATE_FILE, dir_fd=scratch))
        except OSError as error:
            if error.errno not in (errno.EILSEQ, errno.EINVAL):  # a name that it does not take
                raise
            return False
        made.append(name)
        return True

    try:
        return probe_name_folding(id, make, lambda name: _exists(scratch, name))
    finally:
        for name in made:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=scratch)


def _fsync_folder(path: Path) -> None:
    folder = os.open(path, _OPEN_FOLDER)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
