"""`FolderBlobs`: blobs as files in one folder, which several processes may share.

The blob ``a/b.pdf`` is the file ``a~/b.pdf`` (see `file_names`). A file whose name does not decode
to a key is not ours: it is neither listed nor deleted. Links are never followed. Only the owner of
the folder can read its contents.

On a file system that treats ``Acme`` and ``acme`` as one name, a new folder gets the mark
``.folding``, and its names contain a hash. A folder that an older release filled there has no mark
and plain names. It stays readable and writable, but two keys in it may mean one file.

A put writes the blob to ``.writing/``, syncs it and renames it, so that readers see the whole blob
or none. There are no locks, because a process may stall while it holds one. Instead, a put whose
folder another process removed at the same moment creates that folder again.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.display import get_logger
from holdfast.errors import StoreUnavailable, StoreUnusable
from holdfast.storage.blobs import BlobContent, BlobEntry, BlobPage
from holdfast.storage.file_errors import store_error
from holdfast.storage.file_names import FileNames
from holdfast.storage.folder_files import (
    OPEN_FOLDER,
    PRIVATE_FOLDER,
    file_exists,
    fsync_folder,
    hash_file,
    is_folder,
    open_folder,
    open_or_create_folder,
    probe_folder_folding,
    read_file,
    read_size,
    write_file,
)
from holdfast.storage.folder_tree import (
    clear_scratch,
    delete_tree,
    list_parts,
    prune_empty_folders,
    remove_empty_parents,
    walk_blobs,
)

__all__ = ["FolderBlobs"]

_log = get_logger("holdfast.storage")

THREADS = 4
LEFTOVER_SECONDS = 24 * 3600
"""An unfinished file that is older than this was left behind by a crash."""
ATTEMPTS_MAX = 100
"""How often one put creates again the folders that other processes remove meanwhile."""

_SCRATCH = b".writing"
_FOLDING_MARK = b".folding"
_PLAIN_NAMES, _HASHED_NAMES = FileNames(hashed=False), FileNames(hashed=True)


class FolderBlobs:
    """Blobs in a folder, which the first put creates."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        on_close: Callable[[], object] | None = None,
        exclusive: bool = False,
    ) -> None:
        """``exclusive``: the folder contains nothing but blobs, and can be made private."""
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
                    continue  # another process removed the folder after we created it
                return
        raise StoreUnavailable(f"the folder of blob {key!r} in {self._root} is being deleted")

    def _write_once(self, key: str, data: bytes) -> None:
        self._make_root()
        with self._open_root() as root, open_or_create_folder(root, [_SCRATCH]) as scratch:
            folders, name = self._choose_names(root, scratch).path_of(key)
            self._clear_old_scratch(scratch)
            partial = self._ids.new().encode()
            try:
                write_file(scratch, partial, data)
                with open_or_create_folder(root, folders) as folder:
                    os.replace(partial, name, src_dir_fd=scratch, dst_dir_fd=folder)
                    os.fsync(folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial, dir_fd=scratch)
                raise

    def check(self) -> None:
        """Check that the folder, if it exists, can be used.

        Raises:
            StoreUnusable: the path is that of a file.
            AccessDenied: this process may not read the folder.
        """
        # Its mode is left alone: the file beside it may turn out not to be a store of ours.
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
            with open_folder(root, folders) as folder:
                if read_size(folder, name) == size and hash_file(folder, name) == sha256:
                    os.fsync(folder)  # the process that put it may have died before its fsync
                    return True
        return False

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        with (
            self._translate_errors(writing=False),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            folders, name = self._load_names(root).path_of(key)
            with open_folder(root, folders) as folder:
                return read_file(folder, name, bytes_max)
        return None

    def delete(self, key: str) -> None:
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            folders, name = self._load_names(root).path_of(key)
            with open_folder(root, folders) as folder:
                if read_size(folder, name) is None:
                    return
                os.unlink(name, dir_fd=folder)
                os.fsync(folder)
            remove_empty_parents(root, folders)

    def delete_all(self, prefix: str) -> int:
        deleted = 0
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            names = self._load_names(root)
            *above, last = names.folders(prefix)
            with open_folder(root, above) as parent:
                deleted = delete_tree(parent, last, base=prefix.encode(), names=names)
                os.fsync(parent)
            remove_empty_parents(root, above)
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
            with open_folder(root, names.folders(base)) as folder:
                walk = walk_blobs(
                    folder,
                    base.encode(),
                    start=start.encode(),
                    after=(after or "").encode(),
                    names=names,
                )
                # Close it: it keeps folders open when it stops early.
                with closing(walk):
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
            with suppress(FileNotFoundError), open_folder(root, [_SCRATCH]) as scratch:
                removed += clear_scratch(scratch, before_ms / 1000)
            names = self._load_names(root)
            removed += prune_empty_folders(root, 0, before=before_ms / 1000, names=names)
        return removed

    def create(self) -> None:
        with self._translate_errors(writing=True):
            self._make_root()
            with self._open_root():
                pass

    def list_owned_names(self) -> list[str]:
        """Return the names in the folder that certainly belong to this store.

        These are the mark and the folders. A file may belong to another program.
        """
        with (
            self._translate_errors(writing=False),
            suppress(FileNotFoundError),
            self._open_root() as root,
        ):
            names = self._load_names(root)
            ours = [names.name(part) for part in list_parts(root, names) if part.endswith(b"/")]
            ours = [name for name in ours if is_folder(root, name)]
            return [os.fsdecode(name) for name in ([_FOLDING_MARK] if names.hashed else []) + ours]
        return []

    def probe_exact_keys(self) -> bool:
        with (
            self._translate_errors(writing=True),
            suppress(FileNotFoundError),
            self._open_root() as root,
            open_or_create_folder(root, [_SCRATCH]) as scratch,
        ):
            self._choose_names(root, scratch)
        return self._keys_are_exact

    def _load_names(self, root: int) -> FileNames:
        """Return how the existing files are named, without choosing it for an empty folder."""
        if self._names is not None:
            return self._names
        return _HASHED_NAMES if file_exists(root, _FOLDING_MARK) else _PLAIN_NAMES

    def _choose_names(self, root: int, scratch: int) -> FileNames:
        """Return how files are named here; the first process in an empty folder chooses it."""
        with self._names_lock:
            if self._names is None:
                self._names = self._detect_names(root, scratch)
            return self._names

    def _detect_names(self, root: int, scratch: int) -> FileNames:
        if file_exists(root, _FOLDING_MARK):
            return _HASHED_NAMES
        if not probe_folder_folding(scratch, self._ids.new().encode()):
            return _PLAIN_NAMES
        is_new = all(name.startswith(".") for name in os.listdir(root))
        if is_new:
            with suppress(FileExistsError):  # another process may have been first
                write_file(root, _FOLDING_MARK, b"")
            os.fsync(root)
        if is_new or file_exists(root, _FOLDING_MARK):  # another process may have marked it since
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
                folder.chmod(PRIVATE_FOLDER)  # the umask may have removed bits
            fsync_folder(folder.parent)

    def _make_private(self, root: int) -> None:
        """Take away the access of other users to the folder, once per process.

        A linked folder is left alone: it may contain other things.
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
            root = os.open(self._root, OPEN_FOLDER)
        except NotADirectoryError:
            raise StoreUnusable(f"{self._root} is not a folder; blobs need a folder") from None
        try:
            if self._must_make_private and make_private:
                self._make_private(root)
            yield root
        finally:
            os.close(root)

    def _clear_old_scratch(self, scratch: int) -> None:
        """Remove the unfinished files of crashed processes, once per process.

        In the unlikely case that a process is still writing one, it finds its file gone and writes
        it again.
        """
        if self._scratch_cleared:
            return
        self._scratch_cleared = True
        clear_scratch(scratch, self._clock.now_ms() / 1000 - LEFTOVER_SECONDS)

    @contextmanager
    def _translate_errors(self, *, writing: bool) -> Generator[None]:
        """Raise errors of the operating system as errors of Holdfast."""
        try:
            yield
        except OSError as error:
            raise store_error(error, f"the folder {self._root}", writing=writing) from error
