"""Hostile files are rejected, or fail in one segment, with the reason; this process goes on.

Memory and time are bounded by the limits of the child process, which the system enforces.
"""

from __future__ import annotations

import io
import os
import random
import zipfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from PIL import Image

from holdfast.errors import FileRejected
from holdfast.integrations.reading import (
    FileReader,
    ReadLimits,
    ReadSegment,
    SegmentFailure,
    sniffed_type,
)
from holdfast.integrations.reading.read_segments import FileKind
from tests.integrations.reading.made_files import (
    CONTENT_TYPES,
    GB,
    docx_file,
    encoded,
    huge_png,
    pdf,
    pdf_of_content,
    pptx_file,
    raw_pdf,
    repacked,
    with_bomb,
    written,
    xlsx_file,
)

MB = 1024**2
LIMITS = ReadLimits(memory_bytes=256 * MB, seconds=30)
READER = FileReader(LIMITS)
DOCX = docx_file()
XLSX = xlsx_file({"S": [["a", 1]]})
PPTX = pptx_file()
ENTITIES = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    b'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    b"<w:body><w:p><w:r><w:t>&b;</w:t></w:r></w:p></w:body></w:document>"
)


@pytest.fixture(autouse=True)
async def this_process_goes_on(tmp_path: Path) -> AsyncIterator[None]:
    """After each hostile file, an ordinary one is read."""
    yield
    path = written(tmp_path, "ordinary.pdf", pdf(["fine"]))
    async with aclosing(READER.read(path, "pdf", [0], images=False)) as segments:
        page = await anext(segments)
    assert isinstance(page, ReadSegment)
    assert page.text == "fine"


async def rejected(path: Path, kind: FileKind, *, reader: FileReader = READER) -> FileRejected:
    with pytest.raises(FileRejected) as caught:
        await reader.outline(path, kind)
    return caught.value


async def only_segment(
    path: Path, kind: FileKind, *, reader: FileReader = READER
) -> ReadSegment | SegmentFailure:
    async with aclosing(reader.read(path, kind, [0], images=True)) as segments:
        return await anext(segments)


# --- truncated, encrypted, something else ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.pdf", pdf(["x"] * 20)),
        ("a.docx", DOCX),
        ("a.xlsx", XLSX),
        ("a.pptx", PPTX),
        ("a.png", encoded(Image.effect_noise((200, 200), 50))),
        ("a.jpg", encoded(Image.effect_noise((200, 200), 50), "JPEG")),
        ("a.tif", encoded(Image.effect_noise((200, 200), 50), "TIFF")),
    ],
)
async def test_a_truncated_file_is_rejected(name: str, data: bytes, tmp_path: Path) -> None:
    half = data[: len(data) // 2]
    kind = sniffed_type(data, name).kind
    if name == "a.tif":  # the list of its frames is at its end; the file says where
        half = data[:100]
    if name == "a.pdf":  # PDFium rebuilds what it finds: nothing is left here
        half = data[:120]
    found = await rejected(written(tmp_path, name, half), kind)
    assert found.reason in ("truncated", "damaged")


async def test_an_encrypted_pdf_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf(["x"], password="secret"))
    assert (await rejected(path, "pdf")).reason == "encrypted"


async def test_a_pdf_that_opens_without_a_password_is_read(tmp_path: Path) -> None:
    """It restricts printing, for programs that obey; each viewer shows its text."""
    path = written(tmp_path, "a.pdf", pdf(["readable"], password=""))
    assert (await READER.outline(path, "pdf")).segments == 1


async def test_an_office_file_with_an_encrypted_part_is_rejected(tmp_path: Path) -> None:
    data = bytearray(DOCX)
    listed = data.rfind(b"PK\x01\x02")
    data[listed + 8] |= 1
    found = await rejected(written(tmp_path, "a.docx", bytes(data)), "docx")
    assert found.reason == "encrypted"


async def test_a_file_that_is_two_kinds_is_rejected(tmp_path: Path) -> None:
    """A scanner that trusts the beginning would see one kind, a program that unzips the other."""
    for name, data, kind in (
        ("a.pdf", pdf(["x"]) + DOCX, "pdf"),
        ("a.png", encoded(Image.new("L", (4, 4))) + DOCX, "image"),
    ):
        assert (await rejected(written(tmp_path, name, data), kind)).reason == "polyglot"
    for before in (b"%PDF-1.4\n", b"PK\x03\x04" + bytes(26)):
        found = await rejected(written(tmp_path, "a.docx", before + DOCX), "docx")
        assert found.reason == "polyglot"


async def test_an_office_file_of_another_kind_is_rejected(tmp_path: Path) -> None:
    assert (await rejected(written(tmp_path, "a.docx", XLSX), "docx")).reason == "mismatch"
    bare = repacked(DOCX, {CONTENT_TYPES: None})
    assert (await rejected(written(tmp_path, "b.docx", bare), "docx")).reason == "mismatch"


@pytest.mark.parametrize(
    "changes",
    [
        {"word/vbaProject.bin": b"\xd0\xcf\x11\xe0"},
        {"word/Other/VBAPROJECT.BIN": b"x"},
        {"xl/macrosheets/sheet1.xml": b"<x/>"},
        {
            CONTENT_TYPES: b"<Types>application/vnd.ms-word.document.macroEnabled.main+xml"
            b"wordprocessingml.document.main+xml</Types>"
        },
    ],
)
async def test_macros_are_rejected_whatever_the_name_says(
    changes: dict[str, bytes | None], tmp_path: Path
) -> None:
    path = written(tmp_path, "a.docx", repacked(DOCX, changes))
    assert (await rejected(path, "docx")).reason == "macros"


# --- bombs ----------------------------------------------------------------------------------------


async def test_a_zip_bomb_of_10_gb_is_rejected_by_what_it_declares(tmp_path: Path) -> None:
    data = with_bomb(DOCX, "word/media/image1.png", size=10 * GB, declared=10 * GB)
    assert len(data) < 20 * MB
    found = await rejected(written(tmp_path, "a.docx", data), "docx")
    assert found.reason == "bomb"
    assert "unpacked" in str(found)


async def test_a_zip_bomb_that_hides_its_size_is_rejected(tmp_path: Path) -> None:
    data = with_bomb(DOCX, "word/media/image1.png", size=10 * GB, declared=1_000)
    found = await rejected(written(tmp_path, "a.docx", data), "docx")
    assert found.reason == "damaged"
    assert "CRC" in str(found)


async def test_a_part_that_grows_too_much_is_rejected(tmp_path: Path) -> None:
    data = repacked(DOCX, {"word/media/a.bin": bytes(30 * MB)})
    found = await rejected(written(tmp_path, "a.docx", data), "docx")
    assert found.reason == "bomb"


async def test_parts_that_share_their_bytes_are_rejected(tmp_path: Path) -> None:
    """Many entries for one packed part: small in the file, and large when it is unpacked."""
    stream = io.BytesIO(DOCX)
    with zipfile.ZipFile(stream, "a") as archive:
        first = archive.infolist()[-1]
        for number in range(50):
            copy = zipfile.ZipInfo(f"copy{number}")
            copy.header_offset = first.header_offset
            copy.compress_type, copy.CRC = first.compress_type, first.CRC
            copy.compress_size, copy.file_size = first.compress_size, first.file_size
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True  # pyright: ignore[reportAttributeAccessIssue]
    found = await rejected(written(tmp_path, "a.docx", stream.getvalue()), "docx")
    assert found.reason == "bomb"


async def test_a_nested_bomb_is_not_opened(tmp_path: Path) -> None:
    inner = with_bomb(XLSX, "xl/big.bin", size=10 * GB, declared=10 * GB)
    data = repacked(DOCX, {"word/embeddings/inner.xlsx": inner})
    path = written(tmp_path, "a.docx", data)
    assert (await READER.outline(path, "docx")).segments == 1
    assert (await rejected(written(tmp_path, "inner.xlsx", inner), "xlsx")).reason == "bomb"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("docx", "word/document.xml"),
        ("docx", "word/comments.xml"),
        ("xlsx", "xl/worksheets/sheet1.xml"),
        ("pptx", "ppt/slides/slide1.xml"),
    ],
)
async def test_xml_entities_are_rejected(
    kind: FileKind, part: str, encoding: str, tmp_path: Path
) -> None:
    data = {"docx": DOCX, "xlsx": XLSX, "pptx": PPTX}[kind]
    content = ENTITIES.decode().replace('"1.0"', f'"1.0" encoding="{encoding}"').encode(encoding)
    path = written(tmp_path, f"a.{kind}", repacked(data, {part: content}))
    assert (await rejected(path, kind)).reason == "entities"


async def test_an_image_of_100_000_by_100_000_is_rejected(tmp_path: Path) -> None:
    found = await rejected(written(tmp_path, "a.png", huge_png(100_000, 100_000)), "image")
    assert found.reason == "pixels"
    assert "100,000 x 100,000" in str(found)


async def test_an_image_that_needs_more_memory_than_the_limit_fails(tmp_path: Path) -> None:
    reader = FileReader(ReadLimits(memory_bytes=64 * MB, seconds=30))
    path = written(tmp_path, "a.png", encoded(Image.new("RGB", (6_000, 6_000))))
    assert (await rejected(path, "image", reader=reader)).reason == "memory"
    failure = await only_segment(path, "image", reader=reader)
    assert isinstance(failure, SegmentFailure)
    assert failure.reason == "memory"


# --- PDF ------------------------------------------------------------------------------------------


async def test_a_pdf_with_a_million_objects_is_rejected(tmp_path: Path) -> None:
    pages = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[]/Count 0>>"]
    data = raw_pdf((*pages, *(b"null" for _ in range(1_000_000))))
    found = await rejected(written(tmp_path, "a.pdf", data), "pdf")
    assert found.reason == "objects"
    assert "1,000,003 objects" in str(found)


async def test_a_page_with_too_many_objects_fails_alone(tmp_path: Path) -> None:
    reader = FileReader(ReadLimits(memory_bytes=256 * MB, seconds=30, objects_max=10_000))
    lines = b"0 0 m 9 9 l S\n" * 20_000
    path = written(tmp_path, "a.pdf", pdf_of_content(lines, b"0 0 m 9 9 l S"))
    assert (await reader.outline(path, "pdf")).segments == 2
    found = [each async for each in reader.read(path, "pdf", [0, 1])]
    assert isinstance(found[0], SegmentFailure)
    assert found[0].reason == "objects"
    assert isinstance(found[1], ReadSegment)


async def test_a_page_that_takes_too_long_fails_alone(tmp_path: Path) -> None:
    """Large shapes over each other: the page needs many seconds, of which there is one."""
    reader = FileReader(ReadLimits(memory_bytes=512 * MB, seconds=1, objects_max=10**7))
    slow = b"q 0 0 595 842 re W n\n" + b"0 0 m 595 842 l 0 842 l 595 0 l h f*\n" * 300_000
    path = written(tmp_path, "a.pdf", pdf_of_content(slow, b"0 0 m 9 9 l S"))
    found = [each async for each in reader.read(path, "pdf", [0, 1])]
    assert isinstance(found[0], SegmentFailure)
    assert found[0].reason == "time"
    assert "of a processor" in found[0].detail  # the system's limit, not the clock's
    assert isinstance(found[1], ReadSegment)


async def test_deep_nesting_in_a_pdf_is_survived(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    tree = [b"<</Type/Catalog/Pages 2 0 R/X %s>>" % deep]
    tree += [
        b"<</Type/Pages/Kids[%d 0 R]/Count 1>>" % (number + 3)
        for number in range(20_000)  # a tree of pages that is one long branch
    ]
    path = written(tmp_path, "a.pdf", raw_pdf([*tree, b"<</Type/Page/MediaBox[0 0 9 9]>>"]))
    try:
        await READER.outline(path, "pdf")
    except FileRejected as error:
        assert error.reason in ("damaged", "truncated", "crash", "nesting")  # noqa: PT017


@pytest.mark.parametrize("box", ["0 0 14000 14000", "0 0 1e9 1e9", "0 0 1 14000", "0 0 0 0"])
async def test_a_page_of_any_size_has_a_bounded_image_or_a_reason(box: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf_of_content(b"0 0 m 9 9 l S", box=box))
    found = await only_segment(path, "pdf")
    if isinstance(found, SegmentFailure):
        assert found.reason == "pixels"
        return
    with Image.open(io.BytesIO(found.image or b"")) as image:
        assert image.width * image.height <= LIMITS.image_pixels_max


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.xlsx", "a.pptx", "a.tif", "a.html"])
async def test_damaged_bytes_are_a_result_or_a_reason(name: str, tmp_path: Path) -> None:
    """The same damage each time: the parser may make of it what it can."""
    whole = {
        "a.pdf": pdf(["x"] * 3),
        "a.docx": DOCX,
        "a.xlsx": XLSX,
        "a.pptx": PPTX,
        "a.tif": encoded(Image.new("L", (50, 50)), "TIFF"),
        "a.html": b"<html><body><p>x</p></body></html>" * 20,
    }[name]
    kind = sniffed_type(whole, name).kind
    draw = random.Random(name)
    for number in range(4):
        data = bytearray(whole)
        for _ in range(1 + len(data) // 200):
            data[draw.randrange(8, len(data))] = draw.randrange(256)
        path = written(tmp_path, f"{number}{name}", bytes(data))
        try:
            outline = await READER.outline(path, kind)
        except FileRejected as error:
            assert error.reason  # noqa: PT017
            continue
        indices = range(min(outline.segments, 3))
        results = [each async for each in READER.read(path, kind, indices, images=False)]
        assert [each.index for each in results] == list(indices)


# --- Office ---------------------------------------------------------------------------------------


async def test_deep_nesting_in_a_document_is_rejected(tmp_path: Path) -> None:
    namespace = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    deep = b"<w:p>" * 5_000 + b"</w:p>" * 5_000
    document = b"<w:document %s><w:body>%s</w:body></w:document>" % (namespace, deep)
    path = written(tmp_path, "a.docx", repacked(DOCX, {"word/document.xml": document}))
    assert (await rejected(path, "docx")).reason == "nesting"


async def test_a_sheet_that_declares_a_huge_size_is_read_as_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(XLSX)) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml")
    far = sheet.replace(b"<sheetData>", b'<dimension ref="A1:XFD1048576"/><sheetData>')
    far = far.replace(b"</sheetData>", b'<row r="1048576"><c r="XFD1048576"/></row></sheetData>')
    path = written(tmp_path, "a.xlsx", repacked(XLSX, {"xl/worksheets/sheet1.xml": far}))
    assert (await READER.outline(path, "xlsx")).segments == 1
    segment = await only_segment(path, "xlsx")
    assert isinstance(segment, ReadSegment)
    assert segment.tables == [[["a", "1"]]]


# --- paths ----------------------------------------------------------------------------------------


async def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    real = written(tmp_path, "a.pdf", pdf(["x"]))
    os.mkfifo(tmp_path / "pipe.pdf")
    (tmp_path / "link.pdf").symlink_to(real)
    for path in (
        tmp_path / "pipe.pdf",
        tmp_path / "link.pdf",
        tmp_path,
        tmp_path / "missing.pdf",
        Path("/dev/zero"),
        Path("/dev/tty"),
        "a\0b",
    ):
        with pytest.raises(FileRejected) as caught:
            await READER.outline(path, "pdf")
        assert caught.value.reason == "not_a_file"
        with pytest.raises(FileRejected):
            await anext(READER.read(path, "pdf", [0]))


async def test_an_empty_and_a_large_file_are_rejected(tmp_path: Path) -> None:
    assert (await rejected(written(tmp_path, "a.pdf", b""), "pdf")).reason == "empty"
    reader = FileReader(ReadLimits(file_bytes_max=100))
    path = written(tmp_path, "b.pdf", pdf(["x"]))
    assert (await rejected(path, "pdf", reader=reader)).reason == "too_large"


async def test_a_file_that_changes_while_it_is_read_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf(["x"] * 5))
    async with aclosing(READER.read(path, "pdf", range(5), images=False)) as segments:
        assert isinstance(await anext(segments), ReadSegment)
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(FileRejected) as caught:
            await anext(segments)
    assert caught.value.reason == "changed"


async def test_a_text_that_turns_into_bytes_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", b"word " * 100_000 + bytes(100))
    assert (await rejected(path, "text")).reason == "mismatch"


async def test_a_line_without_an_end_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"x" * 3 * MB)
    reader = FileReader(ReadLimits(memory_bytes=64 * MB, seconds=60))
    assert (await reader.outline(path, "text")).segments > 1_000
