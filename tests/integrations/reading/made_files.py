"""Makes the files that the tests read, ordinary ones and hostile ones."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import docx
import openpyxl
import pptx
from PIL import Image, ImageDraw, ImageFont
from reportlab.lib import pdfencrypt
from reportlab.lib.pagesizes import A4
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

CONTENT_TYPES = "[Content_Types].xml"
GB = 1024**3


def pdf(pages: Sequence[str], *, password: str | None = None, title: str = "Report") -> bytes:
    """Return a PDF with one line of text on each page; an empty text makes an empty page."""
    stream = io.BytesIO()
    encrypt = pdfencrypt.StandardEncryption(password, canPrint=0) if password is not None else None
    canvas = Canvas(stream, pagesize=A4, encrypt=encrypt, invariant=True)
    canvas.setTitle(title)
    for text in pages:
        if text:
            canvas.drawString(72, 720, text)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


def pdf_with_table(rows: Sequence[Sequence[str]]) -> bytes:
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=A4, invariant=True)
    canvas.drawString(72, 760, "A sentence above the table, which is not a part of it")
    for number, row in enumerate(rows):
        for column, cell in enumerate(row):
            canvas.drawString(72 + 150 * column, 720 - 20 * number, cell)
    canvas.drawString(72, 500, "And a sentence below it")
    canvas.showPage()
    canvas.save()
    return stream.getvalue()


def pdf_of_image(image: Image.Image, *, stamp: str = "") -> bytes:
    """Return a PDF whose only page is a scan, perhaps with a stamp of real text."""
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=A4, invariant=True)
    canvas.drawImage(ImageReader(image), 0, 0, *A4)
    if stamp:
        canvas.drawString(72, 20, stamp)
    canvas.showPage()
    canvas.save()
    return stream.getvalue()


def raw_pdf(objects: Iterable[bytes]) -> bytes:
    """Return a PDF of these objects, from 1; the first is its catalog."""
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    offsets: list[int] = []
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(offsets) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % offset for offset in offsets))
    out.write(b"trailer\n<</Size %d/Root 1 0 R>>\n" % (len(offsets) + 1))
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def pdf_of_content(*contents: bytes, box: str = "0 0 595 842") -> bytes:
    """Return a PDF with a page for each stream of instructions, which is compressed."""
    first = 3
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(contents)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(contents)}/MediaBox[{box}]>>".encode(),
    ]
    for number, content in enumerate(contents):
        packed = zlib.compress(content, 1)
        page = f"<</Type/Page/Parent 2 0 R/Contents {first + 2 * number + 1} 0 R>>"
        stream = b"<</Length %d/Filter/FlateDecode>>\nstream\n%s\nendstream"
        objects += [page.encode(), stream % (len(packed), packed)]
    return raw_pdf(objects)


def text_image(text: str, *, size: tuple[int, int] = (900, 200)) -> Image.Image:
    image = Image.new("L", size, 255)
    font = ImageFont.load_default(64)
    ImageDraw.Draw(image).text((40, 50), text, fill=0, font=font)
    return image


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """Return a PNG that claims a size; its pixels are missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


def docx_file(paragraphs: Sequence[str] = ("Hello",), *, title: str = "Letter") -> bytes:
    document = docx.Document()
    document.core_properties.title = title
    for text in paragraphs:
        if text.startswith("# "):
            document.add_heading(text[2:], level=1)
        else:
            document.add_paragraph(text)
    table = document.add_table(rows=2, cols=2)
    for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"cell {number}"
    document.add_paragraph("After the table")
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def xlsx_file(sheets: dict[str, Sequence[Sequence[object]]]) -> bytes:
    book = openpyxl.Workbook(write_only=True)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def pptx_file() -> bytes:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "First slide"
    slide.placeholders[1].text = "A point"
    slide.notes_slide.notes_text_frame.text = "Say hello"
    second = deck.slides.add_slide(deck.slide_layouts[5])
    second.shapes.title.text = "Second slide"
    table = second.shapes.add_table(2, 2, 0, 0, 4_000_000, 1_000_000).table
    for number, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        table.cell(row, column).text = f"cell {number}"
    stream = io.BytesIO()
    deck.save(stream)
    return stream.getvalue()


def repacked(data: bytes, changes: dict[str, bytes | None]) -> bytes:
    """Return a ZIP archive with parts replaced, added or (None) left out."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", 8) as new:
        for name in old.namelist():
            if name not in changes:
                new.writestr(name, old.read(name))
        for name, content in changes.items():
            if content is not None:
                new.writestr(name, content)
    return stream.getvalue()


def with_bomb(data: bytes, name: str, *, size: int, declared: int) -> bytes:
    """Return a ZIP archive with one more part: so many zeros, and the size that it declares.

    The zeros are never in memory. Deflate of a megabyte of them that ends at a byte can be
    repeated, and only the last block differs.
    """
    piece = 1024**2
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(bytes(piece))
    packer.flush(zlib.Z_FULL_FLUSH)  # from here on, each piece is the same
    block = packer.compress(bytes(piece)) + packer.flush(zlib.Z_FULL_FLUSH)
    stream_bytes = block * (size // piece) + b"\x03\x00"
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", 8) as new:
        for each in old.namelist():
            new.writestr(each, old.read(each))
        # Stored as it is, then declared to be packed.
        entry = zipfile.ZipInfo(name)
        offset = stream.tell()
        with new.open(entry, "w") as part:
            part.write(stream_bytes)
        entry = new.getinfo(name)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.file_size = declared
    out = bytearray(stream.getvalue())
    # The local header says so, too: method, and the size if it fits.
    out[offset + 8 : offset + 10] = struct.pack("<H", zipfile.ZIP_DEFLATED)
    out[offset + 22 : offset + 26] = struct.pack("<I", min(declared, 2**32 - 1))
    return bytes(out)


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
