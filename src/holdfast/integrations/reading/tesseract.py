"""`Tesseract`: OCR by Debian's package tesseract-ocr, in a process with limits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Final

from holdfast.errors import ExtractionFailed, ExtractionUnavailable, InvalidRequest, NotConfigured
from holdfast.integrations.reading.confined_program import (
    ProgramBounds,
    ProgramResult,
    run_program,
)
from holdfast.integrations.reading.recognition import OcrLine, OcrText

__all__ = ["Tesseract"]

_LANGUAGES: Final = {
    "ar": "ara",
    "cs": "ces",
    "da": "dan",
    "de": "deu",
    "el": "ell",
    "en": "eng",
    "es": "spa",
    "fi": "fin",
    "fr": "fra",
    "he": "heb",
    "hi": "hin",
    "hu": "hun",
    "it": "ita",
    "ja": "jpn",
    "ko": "kor",
    "nl": "nld",
    "no": "nor",
    "pl": "pol",
    "pt": "por",
    "ro": "ron",
    "ru": "rus",
    "sv": "swe",
    "tr": "tur",
    "uk": "ukr",
    "vi": "vie",
    "zh": "chi_sim",
}
_COLUMNS = 12
_WORD = "5"


class Tesseract:
    """Recognises text with Tesseract.

    ``command`` is the program; by default ``tesseract`` on the PATH. A cancelled call ends it.
    """

    def __init__(
        self,
        *,
        command: str = "tesseract",
        name: str = "tesseract",
        bounds: ProgramBounds | None = None,
    ) -> None:
        """Make an engine. The program is looked for when it is first needed."""
        self.name = name
        self._command = command
        self._bounds = bounds or ProgramBounds()

    async def recognize(self, image: bytes, *, language: str = "en") -> OcrText:
        """Return the text in an image. ``language`` may join several, as in ``en+de``."""
        program = shutil.which(self._command)
        if program is None:
            raise NotConfigured(
                f"OCR needs {self._command}, which is not installed: "
                f"apt-get install tesseract-ocr (Debian, Ubuntu)",
                what="ocr",
            )
        languages = _tesseract_languages(language)
        result = await run_program(
            [program, "stdin", "stdout", "-l", languages, "tsv"], image, bounds=self._bounds
        )
        if result.code != 0 or result.timed_out:
            raise _failure(result, languages)
        lines = tuple(_lines(result.output.decode("utf-8", "replace")))
        return OcrText("\n".join(line.text for line in lines), lines)


def _tesseract_languages(language: str) -> str:
    parts = language.split("+") if isinstance(language, str) else []
    if not parts or not all(
        part and part.isascii() and part.replace("_", "").replace("-", "").isalnum()
        for part in parts
    ):
        raise InvalidRequest(
            f"language must be a code such as 'en', or codes such as 'en+de', got {language!r:.80}",
            field="language",
        )
    return "+".join(_LANGUAGES.get(part.partition("-")[0].lower(), part) for part in parts)


def _failure(result: ProgramResult, languages: str) -> Exception:
    last = result.errors.splitlines()[-1][:300] if result.errors else ""
    if "Failed loading language" in result.errors or "Error opening data file" in result.errors:
        names = [each.replace("_", "-") for each in languages.split("+")]
        packages = " ".join(f"tesseract-ocr-{name}" for name in names)
        return NotConfigured(
            f"Tesseract has no data for {languages}: apt-get install {packages}", what="ocr"
        )
    if result.timed_out:
        return ExtractionFailed("Tesseract took too long, or too much memory, for this image")
    if result.code < 0:
        return ExtractionFailed(f"Tesseract crashed on this image (signal {-result.code})")
    if "Cannot allocate memory" in result.errors:
        return ExtractionUnavailable("Tesseract could not be started: there is too little memory")
    return ExtractionFailed(f"Tesseract cannot read this image: {last or result.code}")


def _lines(tsv: str) -> Iterator[OcrLine]:
    """Join the words of each line. The columns are level, page, block, paragraph, line, word,
    left, top, width, height, confidence, text.
    """
    words: list[list[str]] = []
    for row in tsv.splitlines():
        cells = row.split("\t")
        if len(cells) != _COLUMNS or cells[0] != _WORD or not cells[11].strip():
            continue
        if words and words[-1][1:5] != cells[1:5]:
            yield _line(words)
            words = []
        words.append(cells)
    if words:
        yield _line(words)


def _line(words: list[list[str]]) -> OcrLine:
    boxes = [[float(number) for number in word[6:10]] for word in words]
    confidences = [max(0.0, float(word[10])) for word in words]
    return OcrLine(
        " ".join(word[11].strip() for word in words),
        (
            min(left for left, _, _, _ in boxes),
            min(top for _, top, _, _ in boxes),
            max(left + width for left, _, width, _ in boxes),
            max(top + height for _, top, _, height in boxes),
        ),
        round(sum(confidences) / len(confidences) / 100, 4),
    )
