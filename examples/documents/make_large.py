"""Writes a large PDF for measurements: ``python -m documents.make_large FILE --pages 3000``.

Every page names firms, people, amounts and dates. Most pages are text, some have a table, and a
share of them are scans: images without text. It needs reportlab and Pillow.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

__all__ = ["is_scan", "make_large_pdf", "page_lines"]

_FIRMS = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Juniper", "Larch")
_KINDS = ("Bank", "Company", "Group", "Industries", "Partners", "Works")
_PEOPLE = ("Ana Silva", "Ben Ode", "Carla Funes", "Dan Ito", "Eva Holm", "Femi Ajayi", "Gil Stone")
_VERBS = ("supplies", "pays", "owns", "insures", "sues")
_TABLE_EVERY = 5
_LINES = 30
_FONT_POINTS, _LEADING_POINTS = 11, 16
_SCAN_DPI = 110


def firm(number: int) -> str:
    """Return the name of a firm."""
    return f"{_FIRMS[number % len(_FIRMS)]} {_KINDS[number // len(_FIRMS) % len(_KINDS)]}"


def is_scan(page: int, scans_every: int) -> bool:
    """Return whether a page, from 0, is a scan."""
    return scans_every > 0 and page % scans_every == scans_every - 1


def page_lines(page: int) -> list[str]:
    """Return the text of a page, from 0. No two pages have the same."""
    return [f"Section {page + 1} of the agreement", *_sentences(page)]


def _sentences(page: int) -> Iterator[str]:
    for line in range(_LINES):
        number = page * 31 + line * 7
        person, verb = _PEOPLE[number % len(_PEOPLE)], _VERBS[number % len(_VERBS)]
        yield (
            f"{firm(number)} {verb} {firm(number + 13)} for {100 + number % 900:,}.00 USD, says "
            f"{person}, clause {page + 1}.{line + 1}."
        )


def make_large_pdf(path: Path, pages: int, *, scans_every: int = 50) -> None:
    """Write a PDF; every ``scans_every``-th page is a scan, 0 for none."""
    from reportlab.pdfgen.canvas import Canvas

    drawn: Any = Canvas(str(path), pagesize=(595, 842), invariant=1, pageCompression=1)
    drawn.setTitle("Master agreement")
    for page in range(pages):
        if is_scan(page, scans_every):
            drawn.drawImage(_scan(page), 0, 0, width=595, height=842)
        else:
            _draw_text(drawn, page_lines(page))
            if page % _TABLE_EVERY == 0:
                _draw_table(drawn, page)
        drawn.showPage()
    drawn.save()


def _draw_text(drawn: Any, lines: list[str]) -> None:
    text = drawn.beginText(50, 790)
    text.setFont("Helvetica", _FONT_POINTS, _LEADING_POINTS)
    for line in lines:
        text.textLine(line)
    drawn.drawText(text)


def _draw_table(drawn: Any, page: int) -> None:
    from reportlab.platypus import Table

    rows = [["Item", "Amount", "Due"]]
    rows += [[f"Item {page + 1}-{row}", f"{row * 12}.00 USD", "2026-12-31"] for row in range(1, 5)]
    table: Any = Table(rows, style=[("GRID", (0, 0), (-1, -1), 0.5, (0, 0, 0))])
    table.wrapOn(drawn, 400, 200)
    table.drawOn(drawn, 50, 60)


def _scan(page: int) -> Any:
    """Return a page as an image, in shades of grey."""
    from PIL import Image, ImageDraw, ImageFont
    from reportlab.lib.utils import ImageReader

    scale = _SCAN_DPI / 72
    image = Image.new("L", (int(595 * scale), int(842 * scale)), 255)
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(12 * scale)
    for number, line in enumerate(page_lines(page)[:12]):
        canvas.text((40 * scale, (50 + number * 24) * scale), line, fill=0, font=font)
    written = io.BytesIO()
    image.save(written, "JPEG", quality=70)
    written.seek(0)
    return ImageReader(written)


@click.command(help=__doc__)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--pages", default=3_000, show_default=True, type=click.IntRange(1))
@click.option("--scans-every", default=50, show_default=True, type=click.IntRange(0))
def main(file: Path, pages: int, scans_every: int) -> None:
    make_large_pdf(file, pages, scans_every=scans_every)
    click.echo(f"{file}: {pages:,} pages, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
