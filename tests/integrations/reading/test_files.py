"""`FileReader`: what ordinary files contain, segment by segment."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path

import pytest
from PIL import Image

from holdfast.errors import FileRejected, InvalidRequest
from holdfast.integrations.reading import (
    HEAD_BYTES,
    FileReader,
    FileType,
    ReadLimits,
    ReadSegment,
    SegmentFailure,
    sniffed_type,
)
from tests.integrations.reading.made_files import (
    docx_file,
    encoded,
    pdf,
    pdf_of_image,
    pdf_with_table,
    pptx_file,
    text_image,
    written,
    xlsx_file,
)

READER = FileReader()
PAGE_PIXELS = 300_000


def type_of(path: Path) -> FileType:
    return sniffed_type(path.read_bytes()[:HEAD_BYTES], path.name)


async def read(
    path: Path, indices: Iterable[int] | None = None, *, images: bool = False
) -> list[ReadSegment]:
    """Read segments, all of them unless indices are given, none of which may fail."""
    kind = type_of(path)
    if indices is None:
        indices = range((await READER.outline(path, kind)).segments)
    found: list[ReadSegment] = []
    async with aclosing(READER.read(path, kind, indices, images=images)) as segments:
        async for segment in segments:
            assert isinstance(segment, ReadSegment), segment
            found.append(segment)
    return found


async def test_pages_of_a_pdf(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf(["first page", "second page", ""], title="A report"))
    outline = await READER.outline(path, "pdf")
    assert (outline.segments, outline.kind, outline.title) == (3, "pdf", "A report")
    pages = await read(path, images=True)
    assert [page.index for page in pages] == [0, 1, 2]
    assert [page.text for page in pages] == ["first page", "second page", ""]
    # An empty page has nothing to recognise.
    assert [page.needs_ocr for page in pages] == [False, False, False]
    assert {page.image_type for page in pages} == {"image/png"}
    with Image.open(io.BytesIO(pages[0].image or b"")) as image:
        # Almost 150 dots for an inch: the limit is two million pixels.
        assert (1_150, 1_650) < image.size < (1_240, 1_754)
        assert image.width * image.height <= 2_000_000
        assert image.convert("L").getextrema()[0] < 100


async def test_only_what_is_asked_for_is_read_in_ascending_order(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf([f"page {number}" for number in range(6)]))
    pages = await read(path, [4, 1, 4])
    assert [(page.index, page.text) for page in pages] == [(1, "page 1"), (4, "page 4")]
    assert all(page.image is None for page in pages)
    assert await read(path, []) == []


async def test_a_table_of_a_pdf_is_found_by_its_columns(tmp_path: Path) -> None:
    rows = [["Item", "Count", "Price"], ["Apples", "12", "3.50"], ["Pears, plums", "7", "12.00"]]
    (page,) = await read(written(tmp_path, "a.pdf", pdf_with_table(rows)))
    assert page.tables == [rows]
    assert "A sentence above" in page.text
    assert "And a sentence below" in page.text


async def test_a_scan_needs_ocr_and_is_shown(tmp_path: Path) -> None:
    scan = text_image("Scanned", size=(600, 850))
    (bare,) = await read(written(tmp_path, "a.pdf", pdf_of_image(scan)), images=True)
    assert bare.text == ""
    assert bare.needs_ocr
    assert bare.image_type == "image/jpeg"
    (stamped,) = await read(written(tmp_path, "b.pdf", pdf_of_image(scan, stamp="Page 7")))
    assert stamped.text == "Page 7"
    assert stamped.needs_ocr


async def test_a_page_image_has_at_most_the_pixels_of_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf(["x"]))
    reader = FileReader(ReadLimits(image_pixels_max=PAGE_PIXELS))
    async with aclosing(reader.read(path, "pdf", [0])) as segments:
        page = await anext(segments)
    assert isinstance(page, ReadSegment)
    with Image.open(io.BytesIO(page.image or b"")) as image:
        width, height = image.size
    assert 0.9 * PAGE_PIXELS < width * height <= PAGE_PIXELS


async def test_a_docx_has_paragraphs_and_tables_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, "a.docx", docx_file(["# Chapter", "First", "Second"]))
    outline = await READER.outline(path, "docx")
    assert (outline.segments, outline.title) == (1, "Letter")
    (section,) = await read(path)
    assert section.text == (
        "Chapter\n\nFirst\n\nSecond\n\ncell 0 | cell 1\ncell 2 | cell 3\n\nAfter the table"
    )
    assert section.tables == [[["cell 0", "cell 1"], ["cell 2", "cell 3"]]]
    assert section.title == "Chapter"


async def test_a_long_docx_has_sections_of_bounded_size(tmp_path: Path) -> None:
    part = ["word " * 150] * 3
    paragraphs = [text for number in range(10) for text in (f"# Part {number}", *part)]
    paragraphs.append("x" * 10_000)
    path = written(tmp_path, "a.docx", docx_file(paragraphs))
    found = await read(path)
    assert len(found) > 5
    assert max(len(section.text) for section in found) < 4_200
    assert sum(section.text.count("word") for section in found) == 30 * 150
    assert sum(section.text.count("x") for section in found) == 10_000
    assert found[0].title == "Part 0"
    assert {section.title for section in found} >= {"Part 2", "Part 4", "Part 6"}
    # The same sections, whichever are asked for.
    assert await read(path, [2, 4]) == [found[2], found[4]]


async def test_sheets_of_an_xlsx_are_read_in_blocks_of_rows(tmp_path: Path) -> None:
    rows = [[number, f"name {number}", None, number / 2] for number in range(120)]
    path = written(tmp_path, "a.xlsx", xlsx_file({"Big": rows, "Empty": [], "Small": [["x"]]}))
    assert (await READER.outline(path, "xlsx")).segments == 5
    found = await read(path)
    assert [section.title for section in found] == ["Big", "Big", "Big", "Empty", "Small"]
    assert [len(section.tables[0]) for section in found[:3]] == [50, 50, 20]
    assert found[1].tables[0][0] == ["50", "name 50", "", "25"]
    assert found[1].text.startswith("50 | name 50 |  | 25\n")
    assert found[3].tables == []
    assert (await read(path, [2, 4]))[0] == found[2]


async def test_slides_of_a_pptx_have_notes_and_tables(tmp_path: Path) -> None:
    first, second = await read(written(tmp_path, "a.pptx", pptx_file()))
    assert first.title == "First slide"
    assert first.text == "First slide\n\nA point\n\nNotes: Say hello"
    assert second.tables == [[["cell 0", "cell 1"], ["cell 2", "cell 3"]]]
    assert "cell 2 | cell 3" in second.text


PAGE = """<!DOCTYPE html><html><head><title>A page &amp; more</title>
<style>.evil {color: red}</style><script>var evil = 1;</script></head>
<body><nav><a href="/">Home</a></nav><article><h1>Heading</h1>
<p>The main text of this page, which is long enough to be found. <b onclick="evil()">Bold.</b></p>
<script type="text/javascript">document.write("evil")</script>
<noscript>evil without scripts</noscript><template>evil template</template>
<svg><text>evil drawing</text></svg><iframe src="javascript:evil()">evil frame</iframe>
<p>A second paragraph that says more about the same thing, in a few words.</p>
</article></body></html>
"""


async def test_scripts_and_styles_of_a_page_do_not_pass(tmp_path: Path) -> None:
    path = written(tmp_path, "a.html", PAGE.encode())
    assert (await READER.outline(path, "html")).title == "A page & more"
    (section,) = await read(path)
    assert "main text of this page" in section.text
    assert "A second paragraph" in section.text
    assert "evil" not in section.text
    assert "<" not in section.text


async def test_a_page_without_a_main_text_still_has_its_words(tmp_path: Path) -> None:
    page = "<html><body><script>evil()</script><form><label>Name</label></form></body></html>"
    (section,) = await read(written(tmp_path, "a.html", page.encode()))
    assert section.text == "Name"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
async def test_texts_in_several_encodings(encoding: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "Grüße\r\n\r\nvon hier\x0c\n".encode(encoding))
    (section,) = await read(path)
    assert section.text == "Grüße\n\nvon hier"


async def test_a_letter_that_is_not_utf_8_may_come_late(tmp_path: Path) -> None:
    data = b"word " * 100_000 + "Größe".encode("cp1252")
    found = await read(written(tmp_path, "a.txt", data))
    assert found[-1].text.endswith("Größe")


async def test_headings_of_markdown_are_titles(tmp_path: Path) -> None:
    text = "# One\n\n" + "word " * 300 + "\n\n## Two\n\n" + "more " * 300
    found = await read(written(tmp_path, "a.md", text.encode()))
    assert [section.title for section in found] == ["One", "Two"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
async def test_rows_of_a_csv(separator: str, tmp_path: Path) -> None:
    lines = [separator.join(("id", "name", "note"))]
    lines += [separator.join((str(number), '"a ""b""\nc"', "")) for number in range(150)]
    first, second = await read(written(tmp_path, "a.csv", "\r\n".join(lines).encode()))
    assert first.tables[0][:2] == [["id", "name", "note"], ["0", 'a "b"\nc', ""]]
    assert len(first.tables[0]) == 100
    assert len(second.tables[0]) == 51


async def test_an_image_needs_ocr_and_is_made_smaller(tmp_path: Path) -> None:
    path = written(tmp_path, "a.png", encoded(text_image("Hello", size=(3000, 1500))))
    (frame,) = await read(path, images=True)
    assert frame.needs_ocr
    assert frame.image_type == "image/png"
    with Image.open(io.BytesIO(frame.image or b"")) as image:
        assert image.size == (2000, 1000)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "F"])
async def test_images_of_any_mode(mode: str, tmp_path: Path) -> None:
    data = encoded(Image.new(mode, (20, 10)), "TIFF" if mode in ("CMYK", "F") else "PNG")
    (frame,) = await read(written(tmp_path, "a.tif", data), images=True)
    with Image.open(io.BytesIO(frame.image or b"")) as image:
        assert image.size == (20, 10)
        assert image.mode in ("L", "RGB")


async def test_each_frame_of_a_tiff_is_a_segment(tmp_path: Path) -> None:
    frames = [Image.new("L", (40, 30), shade) for shade in (0, 100, 200)]
    data = encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    path = written(tmp_path, "a.tiff", data)
    assert (await READER.outline(path, "image")).segments == 3
    (last,) = await read(path, [2], images=True)
    with Image.open(io.BytesIO(last.image or b"")) as image:
        assert image.getextrema() == (200, 200)


async def test_a_photo_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.new("RGB", (40, 20), "red"), "JPEG", exif=exif)
    (frame,) = await read(written(tmp_path, "a.jpg", data), images=True)
    with Image.open(io.BytesIO(frame.image or b"")) as image:
        assert image.size == (20, 40)


async def test_recordings_have_no_segments(tmp_path: Path) -> None:
    path = written(tmp_path, "a.mp3", b"ID3\x04" + bytes(100))
    assert (await READER.outline(path, "audio/mpeg")).segments == 0
    with pytest.raises(InvalidRequest, match="transcribe it"):
        await anext(READER.read(path, "audio", [0]))


async def test_what_is_no_type_and_no_index_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf(["x"]))
    with pytest.raises(InvalidRequest, match="type must be"):
        await READER.outline(path, "application/zip")
    with pytest.raises(InvalidRequest, match="indices must be"):
        await anext(READER.read(path, "pdf", [-1]))
    with pytest.raises(InvalidRequest, match="seconds must be"):
        ReadLimits(seconds=0)


async def test_an_index_beyond_the_end_fails_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "a.pdf", pdf(["x"]))
    found = [each async for each in READER.read(path, "pdf", [0, 7], images=False)]
    assert isinstance(found[0], ReadSegment)
    assert isinstance(found[1], SegmentFailure)
    assert (found[1].index, found[1].reason) == (7, "damaged")


async def test_a_file_with_more_segments_than_the_limit_is_rejected(tmp_path: Path) -> None:
    reader = FileReader(ReadLimits(segments_max=2))
    for name, data, kind in (
        ("a.pdf", pdf(["x"] * 3), "pdf"),
        ("a.csv", b"a,b\n" * 300, "csv"),
        ("a.txt", b"word " * 4_000, "text"),
    ):
        with pytest.raises(FileRejected) as rejected:
            await reader.outline(written(tmp_path, name, data), kind)
        assert rejected.value.reason == "too_many_segments"
