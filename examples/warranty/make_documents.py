"""Writes the PDF documents of the example: ``python -m warranty.make_documents``.

They are plain PDF 1.4 with one of the fonts that every reader has. The locked one needs a password,
like a statement that a bank sends by mail.
"""

from __future__ import annotations

from pathlib import Path

DOCUMENTS = Path(__file__).parent / "documents"
LOCKED_PASSWORD = "winter-2026"

WASHER = """\
WARRANTY CERTIFICATE

Product: Washing machine W-70
Serial number: W70-552901
Customer: Ben Ode, ben.ode@example.com
Date of purchase: 2026-09-12
Price: 749.00 USD
Warranty: 36 months
Coverage: parts and labour
Exclusions: seals, filters, commercial use

The manufacturer repairs the machine at the customer's home. Travel costs are
covered for the first 24 months. After that the customer pays them.
"""

COMPRESSOR = """\
WARRANTY AND SERVICE TERMS

Product: Compressor C-900
Serial number: C9-000713
Customer: Ode Metalworks, service@ode-metal.example
Date of purchase: 2026-11-02
Price: 18400.00 USD
Warranty: 24 months
Coverage: parts and labour, loss of production up to 50000.00 USD
Exclusions: wear parts, improper maintenance

If the buyer keeps the maintenance intervals of the manual, the warranty is
extended. Warranty: 60 months, in deviation from the above, for the drive and
the pressure vessel. Which parts belong to the drive is agreed in each case.

The manufacturer is liable for loss of production that a defect causes, unless
the buyer ran the unit outside its permitted temperature.
"""

FREEZER = """\
WARRANTY CERTIFICATE

Product: Freezer F-15
Serial number: F15-300412
Customer: Carla Funes, carla.funes@example.com
Date of purchase: 2026-08-21
Price: 399.00 USD
Warranty: 24 months
Coverage: parts
Exclusions: food that spoils
"""


def pdf_of(text: str) -> bytes:
    """Return a PDF with one page of text."""
    lines = [
        line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        for line in text.splitlines()
    ]
    shown = "\n".join(f"({line}) Tj T*" for line in lines)
    content = f"BT /F1 11 Tf 15 TL 60 770 Td\n{shown}\nET".encode("latin-1")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    written = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"
    offsets: list[int] = []
    for number, each in enumerate(objects, 1):
        offsets.append(len(written))
        written += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size, begins = len(objects) + 1, len(written)
    written += b"xref\n0 %d\n0000000000 65535 f \n%b" % (size, table)
    written += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, begins)
    return written


def locked(data: bytes, password: str) -> bytes:
    """Return a PDF that only opens with the password."""
    from io import BytesIO

    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(BytesIO(data)))
    writer.encrypt(password, algorithm="RC4-128")
    written = BytesIO()
    writer.write(written)
    return written.getvalue()


def main() -> None:
    (DOCUMENTS / "washing-machine.pdf").write_bytes(pdf_of(WASHER))
    (DOCUMENTS / "compressor.pdf").write_bytes(pdf_of(COMPRESSOR))
    (DOCUMENTS / "freezer-locked.pdf").write_bytes(locked(pdf_of(FREEZER), LOCKED_PASSWORD))


if __name__ == "__main__":
    main()
