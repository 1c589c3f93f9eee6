"""Checks a ZIP-based Office file before a parser opens it: bombs, macros, entities, polyglots."""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import BinaryIO
from xml.parsers import expat

from holdfast.integrations.reading.parsing import reject
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import FileKind

__all__ = ["check_office_file", "is_zip_at_end"]

_ENTRIES_MAX = 20_000
_RATIO_MAX = 300
# Below this size, a high ratio is a blank page rather than a bomb.
_RATIO_BYTES_MIN = 20 * 1024**2
_PIECE_BYTES = 256 * 1024
_PROLOG_BYTES_MAX = 1024**2
_CONTENT_TYPES_BYTES_MAX = 4 * 1024**2
_MAIN_PARTS = {
    b"wordprocessingml.document.main+xml": "docx",
    b"spreadsheetml.sheet.main+xml": "xlsx",
    b"presentationml.presentation.main+xml": "pptx",
    b"presentationml.slideshow.main+xml": "pptx",
}
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_COMMENT_BYTES_MAX = 65_535
_BYTES_BEHIND_MAX = 64
_XML = (".xml", ".rels", ".vml")


class _PrologRead(Exception):
    """The parser of a prolog has seen enough."""


def check_office_file(file: BinaryIO, kind: FileKind, limits: ReadLimits, *, whole: bool) -> None:
    """Reject an Office file that is none, or that is hostile.

    ``whole`` unpacks every part once, to compare it with what the archive declares.

    Raises:
        FileRejected: with the reason.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_entries(archive, entries, limits)
            _check_content(archive, kind)
            if whole:
                for entry in entries:
                    _check_entry(archive, entry, limits)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        reject("damaged", f"the file is truncated or damaged: {error}")
    except (NotImplementedError, RuntimeError) as error:
        reject("unsupported", f"a part of the file is packed in a way that is not read: {error}")
    finally:
        file.seek(0)


def _check_entries(
    archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], limits: ReadLimits
) -> None:
    if len(entries) > _ENTRIES_MAX:
        reject("bomb", f"the file has {len(entries):,} parts, at most {_ENTRIES_MAX:,} are read")
    expanded = sum(entry.file_size for entry in entries)
    if expanded > limits.expanded_bytes_max:
        reject(
            "bomb",
            f"unpacked, the file has {expanded:,} bytes, "
            f"at most {limits.expanded_bytes_max:,} are read",
        )
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.flag_bits & 1:
            reject("encrypted", "a part of the file is encrypted")
        name = entry.filename.casefold()
        if name.endswith("vbaproject.bin") or "/macrosheets/" in f"/{name}":
            reject("macros", "the file contains macros")
        if entry.header_offset < end:
            reject("bomb", "parts of the file overlap")
        end = entry.header_offset + entry.compress_size
        if (
            entry.file_size > _RATIO_BYTES_MIN
            and entry.file_size > _RATIO_MAX * entry.compress_size
        ):
            reject("bomb", f"a part of the file grows {_RATIO_MAX}-fold when it is unpacked")
    if len({entry.filename for entry in entries}) < len(entries):
        reject("polyglot", "two parts of the file have the same name")
    if entries and min(entry.header_offset for entry in entries) > 0:
        reject("polyglot", "the file contains something else in front of the archive")


def _check_content(archive: zipfile.ZipFile, kind: FileKind) -> None:
    try:
        entry = archive.getinfo("[Content_Types].xml")
    except KeyError:
        reject("mismatch", "the file is a ZIP archive, but not an Office file")
    if entry.file_size > _CONTENT_TYPES_BYTES_MAX:
        reject("bomb", "the list of types in the file is too large")
    content = archive.read(entry)
    if b"macroenabled" in content.lower() or b"vbaproject" in content.lower():
        reject("macros", "the file contains macros")
    found = {name for main, name in _MAIN_PARTS.items() if main in content}
    if not found:
        reject("mismatch", "the file has no document, sheets or slides in a form that is read")
    if found != {kind}:
        reject("mismatch", f"the content is {' and '.join(sorted(found))}, expected {kind}")


def _check_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limits: ReadLimits) -> None:
    """Unpack a part piece by piece: it must have the size and the hash that are declared.

    zipfile returns at most the declared bytes. If there are more, the hash does not match.
    """
    is_xml = entry.filename.casefold().endswith(_XML)
    prolog: bytes = b""
    with archive.open(entry) as part:
        while piece := part.read(_PIECE_BYTES):
            if is_xml and len(prolog) < _PROLOG_BYTES_MAX:
                prolog += piece
                is_xml = not _is_prolog_over(prolog)
    if is_xml and prolog:
        reject("damaged", f"{entry.filename[:80]} has no content")


def _is_prolog_over(data: bytes) -> bool:
    """Return whether the root element has begun; reject a document type, where entities are."""

    def begin(name: str, attributes: object) -> None:
        raise _PrologRead

    def declare(*declared: object) -> None:
        reject("entities", "the file declares XML entities, which may expand without end")

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.StartDoctypeDeclHandler = declare
    parser.EntityDeclHandler = declare
    try:
        parser.Parse(data, False)
    except _PrologRead:
        return True
    except expat.ExpatError as error:
        reject("damaged", f"a part of the file is not valid XML: {error}")
    return False


def is_zip_at_end(file: BinaryIO) -> bool:
    """Return whether a file of another type is a ZIP archive, too, when it is read from its end."""
    size = file.seek(0, 2)
    start = max(0, size - _COMMENT_BYTES_MAX - _END.size - _BYTES_BEHIND_MAX)
    file.seek(start)
    tail = file.read(size - start)
    file.seek(0)
    found = tail.rfind(_END_SIGNATURE)
    if found < 0 or len(tail) - found < _END.size:
        return False
    *_, count, listing_bytes, _, comment_bytes = _END.unpack_from(tail, found)
    behind = len(tail) - (found + _END.size + comment_bytes)
    listing = start + found - listing_bytes
    # An archive that is embedded in a document has much of the document behind it.
    if not count or listing < 0 or not -1 < behind <= _BYTES_BEHIND_MAX:
        return False
    file.seek(listing)
    signature = file.read(4)
    file.seek(0)
    return signature == b"PK\x01\x02"
