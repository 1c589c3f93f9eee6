"""The child process that parses files: ``python -m holdfast.integrations.reading.child``.

It reads one request from standard input, and writes messages (`frames`) to standard output. The
file comes as an open descriptor. Nothing that a file contains reaches the parent in another form.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from holdfast.errors import FileRejected
from holdfast.integrations.reading.archives import check_office_file, is_zip_at_end
from holdfast.integrations.reading.confinement import confine, die_with_parent, limit_cpu
from holdfast.integrations.reading.frames import (
    OutlineFrame,
    ReadRequest,
    RejectedFrame,
    SegmentFrame,
    StartedFrame,
    write_frame,
)
from holdfast.integrations.reading.parsing import Parser, check_segments, check_text, clean_text
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import RejectionReason

__all__ = ["main"]

MakeParser = Callable[[BinaryIO], Parser]
_DETAIL_CHARS_MAX = 400
_TITLE_CHARS_MAX = 300
_OFFICE = ("docx", "xlsx", "pptx")


def main() -> None:
    """Serve one request."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReadRequest)
    die_with_parent(request.parent)
    # What a library prints must not stand between the messages.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    make_parser = _imported_parser(request)
    file = os.fdopen(request.descriptor, "rb")
    write_frame(output, StartedFrame())
    confine(request.limits.memory_bytes)
    limit_cpu(request.limits.seconds)
    try:
        parser = _opened(request, file, make_parser)
        if request.indices is None:
            count, title = parser.outline()
            check_segments(count, request.limits)
            write_frame(output, OutlineFrame(count, clean_text(title)[:_TITLE_CHARS_MAX].strip()))
            return
    except MemoryError:
        # No cleaning up: with no memory left, anything may fail.
        _end(output, _out_of_memory(None))
    except Exception as error:
        write_frame(output, _rejected(error, None))
        return
    _write_segments(output, parser, request)


def _write_segments(output: BinaryIO, parser: Parser, request: ReadRequest) -> None:
    for index in request.indices or ():
        limit_cpu(request.limits.seconds)
        try:
            segment = parser.segment(index)
            check_text(segment.text, request.limits)
            image = segment.image or b""
            header = msgspec.structs.replace(
                segment,
                index=index,
                image=None,
                text=clean_text(segment.text).strip(),
                title=clean_text(segment.title)[:_TITLE_CHARS_MAX].strip(),
            )
            write_frame(output, SegmentFrame(header), image)
        except MemoryError:
            _end(output, _out_of_memory(index))
        except Exception as error:
            write_frame(output, _rejected(error, index))


def _opened(request: ReadRequest, file: BinaryIO, make_parser: MakeParser) -> Parser:
    if request.kind in _OFFICE:
        check_office_file(file, request.kind, request.limits, whole=request.indices is None)
    elif request.kind in ("pdf", "image") and request.indices is None and is_zip_at_end(file):
        raise FileRejected("the file is a ZIP archive, too", reason="polyglot")
    return make_parser(file)


def _imported_parser(request: ReadRequest) -> MakeParser:
    """Return the parser of a kind. Its libraries are imported before memory is limited."""
    limits: ReadLimits = request.limits
    match request.kind:
        case "pdf":
            from holdfast.integrations.reading.pdf_parser import PdfParser

            return lambda file: PdfParser(file, limits, images=request.images)
        case "docx":
            from holdfast.integrations.reading.docx_parser import DocxParser

            return lambda file: DocxParser(file, limits)
        case "xlsx":
            from holdfast.integrations.reading.xlsx_parser import XlsxParser

            return lambda file: XlsxParser(file, limits)
        case "pptx":
            from holdfast.integrations.reading.pptx_parser import PptxParser

            return lambda file: PptxParser(file, limits)
        case "html":
            from holdfast.integrations.reading.html_parser import HtmlParser

            return lambda file: HtmlParser(file, limits)
        case "image":
            from holdfast.integrations.reading.image_parser import ImageParser

            return lambda file: ImageParser(file, limits, images=request.images)
        case "csv":
            from holdfast.integrations.reading.text_parser import CsvParser

            return lambda file: CsvParser(file, limits)
        case _:
            from holdfast.integrations.reading.text_parser import TextParser

            return lambda file: TextParser(file, limits)


def _rejected(error: Exception, index: int | None) -> RejectedFrame:
    if isinstance(error, FileRejected):
        reason: RejectionReason = error.reason  # pyright: ignore[reportAssignmentType]
        return RejectedFrame(reason, clean_text(str(error))[:_DETAIL_CHARS_MAX], index)
    if isinstance(error, RecursionError):
        return RejectedFrame("nesting", "the content is nested too deeply", index)
    detail = clean_text(f"{type(error).__name__}: {error}")[:_DETAIL_CHARS_MAX]
    return RejectedFrame("damaged", f"the content is damaged ({detail})", index)


def _out_of_memory(index: int | None) -> RejectedFrame:
    return RejectedFrame("memory", "its parser needs more memory than it may use", index)


def _end(output: BinaryIO, frame: RejectedFrame) -> None:
    try:
        write_frame(output, frame)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
