"""`sniffed_type`: what kind of file this is, by its content; its name must not say otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from holdfast.errors import FileRejected
from holdfast.integrations.reading.read_segments import FileKind, RejectionReason

__all__ = ["HEAD_BYTES", "MIME_KINDS", "FileType", "decoded_text", "sniffed_type"]

HEAD_BYTES: Final = 65_536
"""How many of a file's first bytes `sniffed_type` should get."""

_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_SHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_SLIDES = "application/vnd.openxmlformats-officedocument.presentationml.presentation"

MIME_KINDS: Final[Mapping[str, FileKind]] = {
    "application/pdf": "pdf",
    _WORD: "docx",
    _SHEET: "xlsx",
    _SLIDES: "pptx",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
    "text/markdown": "text",
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
    "image/png": "image",
    "image/jpeg": "image",
    "image/gif": "image",
    "image/tiff": "image",
    "image/webp": "image",
    "image/bmp": "image",
    "audio/mpeg": "audio",
    "audio/wav": "audio",
    "audio/flac": "audio",
    "audio/ogg": "audio",
    "audio/mp4": "audio",
    "audio/amr": "audio",
    "video/mp4": "video",
    "video/webm": "video",
    "video/x-msvideo": "video",
}
# An extension, and the types that a file with it may have. Pictures are often named wrongly among
# themselves, and so are recordings: that harms no reader.
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/tiff", "image/webp", "image/bmp")
_RECORDINGS = tuple(mime for mime, kind in MIME_KINDS.items() if kind in ("audio", "video"))
_EXTENSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "pdf": ("application/pdf",),
    "docx": (_WORD,),
    "xlsx": (_SHEET,),
    "pptx": (_SLIDES,),
    "html": ("text/html", "application/xhtml+xml"),
    "htm": ("text/html", "application/xhtml+xml"),
    "xhtml": ("text/html", "application/xhtml+xml"),
    "txt": ("text/plain",),
    "text": ("text/plain",),
    "log": ("text/plain",),
    "md": ("text/markdown",),
    "markdown": ("text/markdown",),
    "csv": ("text/csv",),
    "tsv": ("text/tab-separated-values",),
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "tif", "tiff", "webp", "bmp"), _PICTURES),
    **dict.fromkeys(("mp3", "wav", "flac", "ogg", "oga", "opus", "m4a", "amr"), _RECORDINGS),
    **dict.fromkeys(("mp4", "m4v", "mov", "webm", "mkv", "avi"), _RECORDINGS),
}
_MACRO_EXTENSIONS = frozenset(
    ("docm", "dotm", "xlsm", "xltm", "xlam", "xlsb", "pptm", "potm", "ppsm", "ppam")
)
_PROGRAM_EXTENSIONS = frozenset(
    (
        *("exe", "dll", "com", "scr", "msi", "bat", "cmd", "ps1", "vbs", "js", "jse", "wsf"),
        *("hta", "jar", "sh", "so", "dylib", "apk", "lnk"),
    )
)
_OFFICE_FOLDERS = ((b"word/", _WORD), (b"xl/", _SHEET), (b"ppt/", _SLIDES))
_OFFICE_EXTENSIONS = {"docx": _WORD, "xlsx": _SHEET, "pptx": _SLIDES}
_PROGRAMS = (
    (b"MZ", "a Windows program"),
    (b"\x7fELF", "a program"),
    (b"#!", "a script"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"\xfe\xed\xfa\xce", "a program"),
    (b"\xfe\xed\xfa\xcf", "a program"),
    (b"\xce\xfa\xed\xfe", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"\x00asm", "a program"),
    (b"L\x00\x00\x00\x01\x14\x02\x00", "a shortcut"),
)
_ARCHIVES = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"Rar!", "RAR"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"PK\x05\x06", "empty ZIP"),
)
_MAGIC = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"\xff\xf2", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"#!AMR", "audio/amr"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PDF_HEADER_BYTES = 1_024
# What a text does not contain; tab, line ends, form feed and escape sequences are allowed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_PROLOG = re.compile(r"(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE\s+svg[^>\[]*(?:\[.*?\]\s*)?>)*", re.S)
_HTML = re.compile(r"<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_ROOT = re.compile(r"<(?:[\w.-]+:)?([\w.-]+)")


class FileType(msgspec.Struct, frozen=True):
    """The type of a file, and how it is read."""

    mime: str
    kind: FileKind


def sniffed_type(head: bytes, name: str) -> FileType:
    """Return the type of a file by its first bytes, checked against the extension of its name.

    ``head`` should have `HEAD_BYTES` bytes, or the whole file. A type that is a ZIP archive is
    certain only after `FileReader.outline`, which reads all of it.

    Raises:
        FileRejected: the type is not supported, or the extension names another one.
    """
    extension = _extension(name)
    if not head:
        _reject("empty", "the file is empty")
    if extension in _MACRO_EXTENSIONS:
        _reject("macros", f"files with macros are not accepted (.{extension})")
    if extension in ("svg", "svgz"):
        _reject("svg", "SVG is not accepted: it may contain scripts")
    mime = _binary_mime(head, extension) or _text_mime(head, extension)
    if extension in _PROGRAM_EXTENSIONS:
        _reject("executable", f"programs are not accepted (.{extension})")
    expected = _EXTENSIONS.get(extension)
    if expected is not None and mime not in expected:
        _reject("mismatch", f"the name ends in .{extension}, but the content is {mime}")
    return FileType(mime, MIME_KINDS[mime])


def _extension(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1].strip().casefold()
    stem, dot, extension = last.rpartition(".")
    return extension if dot and stem and len(extension) <= 10 else ""


def _binary_mime(head: bytes, extension: str) -> str | None:
    if head.startswith(b"#!AMR"):
        return "audio/amr"
    for magic, what in _PROGRAMS:
        if head.startswith(magic):
            _reject("executable", f"the content is {what}; programs are not accepted")
    if head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\0").startswith(b"%PDF-"):
        return "application/pdf"
    mime = _zip_mime(head, extension) or _magic_mime(head)
    if mime is not None and b"%PDF-" in head[:_PDF_HEADER_BYTES]:
        _reject("polyglot", f"the file is both {mime} and a PDF")
    if mime is None:
        _reject_known(head, extension)
    return mime


def _magic_mime(head: bytes) -> str | None:
    if head.startswith(b"BM") and head[6:10] == bytes(4):
        return "image/bmp"
    for offset, magic, mime in _MAGIC:
        if head.startswith(magic, offset) and (offset != 8 or head.startswith(b"RIFF")):
            return mime
    return None


def _zip_mime(head: bytes, extension: str) -> str | None:
    if not head.startswith(b"PK\x03\x04"):
        return None
    if b"vbaProject.bin" in head:
        _reject("macros", "the file contains macros")
    for folder, mime in _OFFICE_FOLDERS:
        if re.search(rb"PK\x03\x04.{26}" + re.escape(folder), head, re.DOTALL):
            return mime
    # The parts of a large file may begin behind the head.
    if b"[Content_Types].xml" in head and extension in _OFFICE_EXTENSIONS:
        return _OFFICE_EXTENSIONS[extension]
    if extension in _OFFICE_EXTENSIONS:
        _reject(
            "mismatch", f"the name ends in .{extension}, but the content is another ZIP archive"
        )
    _reject("unsupported", "ZIP archives are not read: add the files in it one by one")


def _reject_known(head: bytes, extension: str) -> None:
    """Reject what is known and not read, with a reason that says what it is."""
    if head.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in head or extension in _OFFICE_EXTENSIONS:
            _reject("encrypted", "the Office file is encrypted: remove its password first")
        _reject("unsupported", "old Office formats are not read: save it as .docx, .xlsx or .pptx")
    for magic, what in _ARCHIVES:
        if head.startswith(magic):
            _reject("unsupported", f"archives are not read ({what}): add the files in it")
    if head[257:262] == b"ustar":
        _reject("unsupported", "archives are not read (tar): add the files in it")
    if head.startswith(b"{\\rtf"):
        _reject("unsupported", "RTF is not read: save it as .docx")


def _text_mime(head: bytes, extension: str) -> str:
    text = decoded_text(head, cut=len(head) >= HEAD_BYTES)
    if text is None:
        _reject("unsupported", f"the content is not of a known type{_guess(head)}")
    root = _ROOT.match(text, prolog.end() if (prolog := _PROLOG.match(text)) else 0)
    if root and root[1].casefold() == "svg":
        _reject("svg", "SVG is not accepted: it may contain scripts")
    is_html = bool(root and root[1].casefold() == "html") or bool(_HTML.match(text.lstrip()))
    expected = _EXTENSIONS.get(extension, ())
    if is_html:
        return "text/html"
    if text.lstrip().startswith("<?xml"):
        _reject("unsupported", "XML is not read, other than as HTML")
    if "text/html" in expected:
        if root is None:
            _reject("mismatch", f"the name ends in .{extension}, but the content is plain text")
        return "text/html"
    if extension in _PROGRAM_EXTENSIONS:
        _reject("executable", f"programs are not accepted (.{extension})")
    if extension and not expected:
        _reject("unsupported", f"files with .{extension} are not read")
    texts = [mime for mime in expected if mime.startswith("text/")]
    return texts[0] if texts else "text/plain"


def decoded_text(data: bytes, *, cut: bool = False) -> str | None:
    """Return bytes as text: UTF-8, UTF-16 with its mark, or else Windows-1252; None if binary.

    ``cut`` says that the last character may be incomplete.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        body = data[: len(data) - len(data) % 2] if cut else data
        text = _decode(body, "utf-16") or (_decode(body[:-2], "utf-16") if cut else None)
    else:
        text = _decode(data, "utf-8-sig")
        for dropped in (1, 2, 3) if cut and text is None else ():
            text = text if text is not None else _decode(data[:-dropped], "utf-8-sig")
        if text is None:
            text = _decode(data, "cp1252")
    return None if text is None or _CONTROLS.search(text) else text


def _decode(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def _guess(head: bytes) -> str:
    try:
        import puremagic
    except ImportError:
        return ""
    library: Any = puremagic
    try:
        found = str(library.magic_string(head)[0].name)
    except (puremagic.PureError, ValueError, LookupError):
        return ""
    return f" (it looks like {found})" if found else ""


def _reject(reason: RejectionReason, message: str) -> NoReturn:
    raise FileRejected(message, reason=reason)
