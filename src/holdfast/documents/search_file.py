"""`SearchFile`: one connection to the search index in an SQLite file, with FTS5.

Synchronous and not thread-safe. The index is derived from the store: what is wrong with the file is
reported as `SearchIndexDamaged`, and building it again repairs it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import quote_from_bytes

from holdfast.clock import Clock
from holdfast.documents.search_query import fts_expression, hit_of
from holdfast.documents.search_words import SearchWords, with_word_breaks
from holdfast.errors import SearchIndexDamaged, SearchUnavailable
from holdfast.model.segment_search import SegmentEntry, SegmentHit

__all__ = ["APPLICATION_ID", "MEMORY", "SearchFile"]

MEMORY = ":memory:"
"""The path of an index in memory."""
APPLICATION_ID = 0x48665378
"""Identifies search indexes of Holdfast: "HfSx"."""

_VERSION = 1
_PRIVATE_FILE = 0o600
_BUSY_MS = 30_000
_WAL_ATTEMPTS_MAX = 100
_SEARCH_SECONDS = 10.0
# How often the time is checked during a search, in steps of SQLite's machine.
_CHECK_STEPS = 20_000
_PRIMARY_MASK = 0xFF
# A damaged file may hold anything. Our own statements and values are far below these limits.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 * 1024 * 1024,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_TABLES = (
    "CREATE TABLE segments (id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, project TEXT NOT NULL, "
    "document TEXT NOT NULL, workflow TEXT NOT NULL, segment INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX segments_key ON segments (tenant, document, workflow, segment)",
    # The workflows of a document in their order; the last one is searched.
    "CREATE TABLE workflows (tenant TEXT NOT NULL, document TEXT NOT NULL, workflow TEXT NOT NULL, "
    "number INTEGER NOT NULL, PRIMARY KEY (tenant, document, workflow)) WITHOUT ROWID",
    # `scope` has a word for the tenant, the project and the document, so that a search reads only
    # what these contain.
    "CREATE VIRTUAL TABLE words USING fts5(title, body, scope, "
    "tokenize = 'unicode61 remove_diacritics 2')",
)
_SEARCH = (
    "SELECT segments.document, segments.project, segments.workflow, segments.segment, "
    "words.title, snippet(words, 1, char(2), char(3), '…', 40), words.rank "
    "FROM words CROSS JOIN segments ON segments.id = words.rowid "
    "WHERE words MATCH ? AND words.rank MATCH 'bm25(3.0, 1.0, 0.0)' AND segments.tenant = ? "
    "AND (? IS NULL OR segments.project = ?) AND (? IS NULL OR segments.document = ?) "
    "ORDER BY words.rank LIMIT ?"
)


class SearchFile:
    """A connection, which is opened when it is first used."""

    def __init__(self, path: str, clock: Clock, *, is_reader: bool = False) -> None:
        self._path = path
        self._clock = clock
        self._is_reader = is_reader
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def add(
        self,
        tenant: str,
        project: str,
        *,
        document: str,
        workflow: str,
        entries: Sequence[SegmentEntry],
    ) -> None:
        """Add or replace segments in one transaction; ignore those of a superseded workflow."""
        with self._transaction() as connection:
            if not _take_turn(connection, tenant, document, workflow):
                return
            scope = " ".join(_scopes(tenant, project, document))
            for entry in entries:
                key = (tenant, document, workflow, entry.index)
                row = connection.execute(
                    "INSERT INTO segments (tenant, document, workflow, segment, project) "
                    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant, document, workflow, segment) "
                    "DO UPDATE SET project = excluded.project RETURNING id",
                    (*key, project),
                ).fetchone()[0]
                connection.execute("DELETE FROM words WHERE rowid = ?", (row,))
                connection.execute(
                    "INSERT INTO words (rowid, title, body, scope) VALUES (?, ?, ?, ?)",
                    (row, with_word_breaks(entry.title), with_word_breaks(entry.text), scope),
                )

    def remove(self, tenant: str, document: str) -> None:
        """Remove a document."""
        if self._exists():
            with self._transaction() as connection:
                _delete(connection, "tenant = ? AND document = ?", (tenant, document))

    def clear(self, tenant: str) -> None:
        """Remove all of a tenant from a file that is not damaged anywhere."""
        if not self._exists():
            return
        with self._transaction() as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise SearchIndexDamaged(f"the search index {self._path} is damaged: {found}")
            connection.execute("INSERT INTO words(words) VALUES ('integrity-check')")
            _delete(connection, "tenant = ?", (tenant,))

    def search(
        self,
        tenant: str,
        words: SearchWords,
        *,
        project: str | None,
        document: str | None,
        limit: int,
    ) -> list[SegmentHit]:
        """Return the segments that fit best."""
        if not self._exists():
            return []
        asked = fts_expression(words, scope=_scopes(tenant, project, document)[-1])
        deadline = self._clock.monotonic() + _SEARCH_SECONDS
        with self._errors():
            connection = self._open()
            connection.set_progress_handler(
                lambda: self._clock.monotonic() > deadline, _CHECK_STEPS
            )
            try:
                rows = connection.execute(
                    _SEARCH, (asked, tenant, project, project, document, document, limit)
                ).fetchall()
            finally:
                connection.set_progress_handler(None, 0)
        return [hit_of(row) for row in rows]

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _exists(self) -> bool:
        return self._path == MEMORY or os.path.exists(self._path)

    def _open(self) -> sqlite3.Connection:
        """Return the connection to the file that now has the name."""
        if self._connection is not None and self._identity == _identity(self._path):
            return self._connection
        self.close()
        if self._path != MEMORY:
            _create_private(self._path)
        connection = _connect(self._path)
        try:
            _prepare(connection, self._path)
            if self._is_reader:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, _identity(self._path)
        return connection

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._errors():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Raise errors of SQLite as those of a search, and leave go of a file that failed."""
        try:
            yield
        except (sqlite3.Error, OSError, SearchIndexDamaged) as error:
            if self._path != MEMORY:
                with suppress(sqlite3.Error):
                    self.close()
            if isinstance(error, SearchIndexDamaged):
                raise
            raise _search_error(error, self._path) from error


def _scopes(tenant: str, project: str | None, document: str | None) -> list[str]:
    """Return the words that stand for a tenant, a project and a document of it."""
    scopes = [_scope("t", tenant)]
    if project is not None:
        scopes.append(_scope("p", tenant, project))
    if document is not None:
        scopes.append(_scope("d", tenant, document))
    return scopes


def _scope(kind: str, *names: str) -> str:
    named = "\0".join(names).encode("utf-8", "surrogatepass")
    return kind + hashlib.blake2b(named, digest_size=12).hexdigest()


def _delete(connection: sqlite3.Connection, condition: str, given: Sequence[str]) -> None:
    connection.execute(
        f"DELETE FROM words WHERE rowid IN (SELECT id FROM segments WHERE {condition})", given
    )
    for table in ("segments", "workflows"):
        connection.execute(f"DELETE FROM {table} WHERE {condition}", given)


def _take_turn(connection: sqlite3.Connection, tenant: str, document: str, workflow: str) -> bool:
    """Make a new workflow of a document the one that is searched; return False for an old one."""
    known = dict(
        connection.execute(
            "SELECT workflow, number FROM workflows WHERE tenant = ? AND document = ?",
            (tenant, document),
        ).fetchall()
    )
    last = max(known.values(), default=0)
    if workflow in known:
        return known[workflow] == last
    _delete(connection, "tenant = ? AND document = ?", (tenant, document))
    connection.executemany(
        "INSERT INTO workflows VALUES (?, ?, ?, ?)",
        [(tenant, document, *each) for each in ({**known, workflow: last + 1}).items()],
    )
    return True


# --- the file -------------------------------------------------------------------------------------


def _create_private(path: str) -> None:
    """Create the file if there is none: SQLite would let other users read it."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE))


def _connect(path: str) -> sqlite3.Connection:
    name = path
    if path != MEMORY:
        name = f"file://{quote_from_bytes(os.fsencode(os.path.abspath(path)))}?mode=rw"
    connection = sqlite3.connect(
        name,
        timeout=_BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        uri=path != MEMORY,
    )
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables if they are missing, and turn on the log that lets readers go on."""
    # A reader that finds the tables takes no lock that a writer holds.
    if not _has_tables(connection, path, begin="BEGIN"):
        _has_tables(connection, path, begin="BEGIN IMMEDIATE", create=True)
    if path != MEMORY:
        _switch_to_wal(connection)
    # A crash may lose the last commits, but does not damage the file.
    connection.execute("PRAGMA synchronous = NORMAL")


def _has_tables(
    connection: sqlite3.Connection, path: str, *, begin: str, create: bool = False
) -> bool:
    """Return whether the file has the tables of this release; create them if it has none."""
    connection.execute(begin)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and create:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif tables and application != APPLICATION_ID:
            raise SearchIndexDamaged(
                f"{path} is not a search index of Holdfast: choose another file for it"
            )
        elif tables and version != _VERSION:
            raise SearchIndexDamaged(
                f"the search index {path} has version {version}, and this release uses {_VERSION}: "
                "build it again with holdfast documents reindex"
            )
        connection.execute("COMMIT")
        return bool(tables) or create
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log. SQLite does not wait for other processes here."""
    if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
        return
    for attempt in range(_WAL_ATTEMPTS_MAX):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS_MAX - 1:
                raise
            connection.execute("BEGIN IMMEDIATE")  # waits for them
            connection.execute("COMMIT")
        else:
            return


def _identity(path: str) -> tuple[int, int] | None:
    if path == MEMORY:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _search_error(error: Exception, path: str) -> Exception:
    if isinstance(error, OSError):
        return SearchUnavailable(f"the search index {path} cannot be opened: {error.strerror}")
    code = _primary_code(error)
    if code == sqlite3.SQLITE_INTERRUPT:
        return SearchUnavailable(
            f"the search took longer than {_SEARCH_SECONDS:.0f} s: ask with fewer and rarer words"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return SearchUnavailable(f"the search index {path} stayed locked by another process")
    if code in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERNAL,
    ):
        return SearchUnavailable(f"the search index {path} cannot be used: {error}")
    return SearchIndexDamaged(
        f"the search index {path} is damaged ({error}): build it again with holdfast documents "
        "reindex; the documents themselves are in the store"
    )


def _primary_code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_MASK
