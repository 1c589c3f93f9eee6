"""`sniffed_type`: by content, and checked against the name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from holdfast.errors import FileRejected
from holdfast.integrations.reading import FileType, sniffed_type
from tests.integrations.reading.made_files import (
    docx_file,
    encoded,
    pdf,
    pptx_file,
    repacked,
    xlsx_file,
)

DOCX = docx_file()
PNG = encoded(Image.new("RGB", (4, 4)))
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)


@pytest.mark.parametrize(
    ("name", "head", "mime", "kind"),
    [
        ("a.pdf", pdf(["x"]), "application/pdf", "pdf"),
        ("A.PDF", b"\xef\xbb\xbf\r\n%PDF-1.7\n", "application/pdf", "pdf"),
        ("no extension", pdf(["x"]), "application/pdf", "pdf"),
        ("a.docx", DOCX, ".wordprocessingml.document", "docx"),
        ("a.xlsx", xlsx_file({"S": [[1]]}), ".spreadsheetml.sheet", "xlsx"),
        ("a.pptx", pptx_file(), ".presentationml.presentation", "pptx"),
        ("a.png", PNG, "image/png", "image"),
        ("a.jpg", PNG, "image/png", "image"),
        ("a.tif", encoded(Image.new("1", (4, 4)), "TIFF"), "image/tiff", "image"),
        ("a.gif", encoded(Image.new("P", (4, 4)), "GIF"), "image/gif", "image"),
        ("a.webp", encoded(Image.new("RGB", (4, 4)), "WEBP"), "image/webp", "image"),
        ("a.bmp", encoded(Image.new("RGB", (4, 4)), "BMP"), "image/bmp", "image"),
        ("a.txt", b"plain text", "text/plain", "text"),
        ("README", "ünïcode".encode(), "text/plain", "text"),
        ("a.txt", "Grüße".encode("cp1252"), "text/plain", "text"),
        ("a.txt", "wide".encode("utf-16"), "text/plain", "text"),
        ("a.md", b"# Title\n<p align=center>x</p>", "text/markdown", "text"),
        ("a.csv", b"a,b\n1,2\n", "text/csv", "csv"),
        ("a.tsv", b"a\tb\n", "text/tab-separated-values", "csv"),
        ("a.html", b"<!DOCTYPE html><p>x", "text/html", "html"),
        ("a.htm", b"<div>part of a page</div>", "text/html", "html"),
        ("page", b"<?xml version='1.0'?><html><body/></html>", "text/html", "html"),
        ("a.mp3", b"ID3\x04\x00" + bytes(20), "audio/mpeg", "audio"),
        ("a.wav", b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav", "audio"),
        ("a.mp4", b"\0\0\0\x18ftypisom" + bytes(8), "video/mp4", "video"),
        ("a.m4a", b"\0\0\0\x18ftypM4A " + bytes(8), "audio/mp4", "audio"),
        ("a.webm", b"\x1aE\xdf\xa3" + bytes(8), "video/webm", "video"),
    ],
)
def test_a_type_is_known_by_its_content(name: str, head: bytes, mime: str, kind: str) -> None:
    found = sniffed_type(head, name)
    assert found.mime.endswith(mime)
    assert found.kind == kind


SVG = b'<?xml version="1.0"?>\n<!-- x -->\n<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>'


@pytest.mark.parametrize(
    ("name", "head", "reason"),
    [
        ("a.pdf", b"", "empty"),
        ("a.pdf", DOCX, "mismatch"),
        ("a.docx", pdf(["x"]), "mismatch"),
        ("a.xlsx", DOCX, "mismatch"),
        ("a.png", b"just text", "mismatch"),
        ("a.txt", PNG, "mismatch"),
        ("a.txt", b"<html><script>alert(1)</script>", "mismatch"),
        ("a.csv", b"<!doctype html><p>", "mismatch"),
        ("a.html", b"no tags at all", "mismatch"),
        ("a.pdf", b"not a PDF", "mismatch"),
        ("a.docx", b"PK\x03\x04" + bytes(200), "mismatch"),
        ("a.exe", pdf(["x"]), "executable"),
        ("a.sh", b"echo hello", "executable"),
        ("a.pdf", b"MZ\x90\0" + bytes(60), "executable"),
        ("a.txt", b"#!/bin/sh\nrm -rf /", "executable"),
        ("a", b"\x7fELF\x02" + bytes(60), "executable"),
        ("a.svg", SVG, "svg"),
        ("a.png", SVG, "svg"),
        ("a.txt", "\ufeff<svg onload='x'/>".encode("utf-16-le"), "svg"),
        ("a.html", b"  <!DOCTYPE svg PUBLIC '-//W3C' 'x'>\n<s:svg xmlns:s='x'/>", "svg"),
        ("a.docm", DOCX, "macros"),
        ("a.xlsm", b"PK\x03\x04", "macros"),
        ("a.docx", repacked(DOCX, {"word/vbaProject.bin": b"x"}), "macros"),
        ("a.docx", OLE + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
        ("a.xlsx", OLE, "encrypted"),
        ("a.doc", OLE, "unsupported"),
        ("a.zip", b"PK\x03\x04" + bytes(200), "unsupported"),
        ("a.gz", b"\x1f\x8b\x08", "unsupported"),
        ("a.tar", bytes(257) + b"ustar\0", "unsupported"),
        ("a.xml", b"<?xml version='1.0'?><a/>", "unsupported"),
        ("a.rtf", b"{\\rtf1 x}", "unsupported"),
        ("a.py", b"print(1)", "unsupported"),
        ("a.bin", bytes(range(256)), "unsupported"),
        ("a.png", PNG + b"%PDF-1.4", "polyglot"),
        ("a.gif", b"GIF89a" + bytes(20) + b"%PDF-1.4\n", "polyglot"),
    ],
)
def test_a_file_is_rejected_with_the_reason(name: str, head: bytes, reason: str) -> None:
    with pytest.raises(FileRejected) as rejected:
        sniffed_type(head, name)
    assert rejected.value.reason == reason
    assert len(str(rejected.value)) > 15


@given(st.binary(max_size=300), st.text(max_size=20))
def test_any_bytes_have_a_type_or_a_reason(head: bytes, name: str) -> None:
    try:
        found = sniffed_type(head, name)
    except FileRejected:
        return
    assert isinstance(found, FileType)


@pytest.mark.parametrize("magic", [b"PK\x03\x04", b"RIFF", b"<?xml", b"<!--", b"<!DOCTYPE svg ["])
def test_a_head_that_repeats_costs_little(magic: bytes) -> None:
    """A pattern that were tried again and again would take minutes for a head of 64 KB."""
    head = (magic + struct.pack("<I", 1)) * (65_536 // (len(magic) + 4))
    with pytest.raises(FileRejected):
        sniffed_type(head, "a.docx")
