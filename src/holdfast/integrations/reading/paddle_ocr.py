"""`PaddleOcr`: OCR by PaddleOCR 3 with its models PP-OCRv5. Needs holdfast[paddleocr]."""

# PaddleOCR has no types: what comes from it is Any here.
from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.errors import ExtractionFailed, NotConfigured
from holdfast.integrations.reading.recognition import OcrLine, OcrText

__all__ = ["PaddleOcr"]

_LANGUAGES: Final = {"zh": "ch", "ja": "japan", "ko": "korean", "de": "german", "fr": "french"}


class PaddleOcr:
    """Recognises text with PaddleOCR.

    The models of a language are loaded, and at first downloaded, when the language is first asked
    for. PaddleOCR is not safe for threads, so it has one thread, and images wait for each other.
    """

    def __init__(self, *, version: str = "PP-OCRv5", name: str = "pp-ocrv5") -> None:
        """Make an engine. Nothing is imported before the first image."""
        self.name = name
        self._version = version
        self._threads = NodeThreads(1, name="paddleocr")
        self._engines: dict[str, Any] = {}

    async def recognize(self, image: bytes, *, language: str = "en") -> OcrText:
        """Return the text in an image. A cancelled call lets the engine finish its image."""
        return await asyncio.wrap_future(self._threads.submit(self._predict, image, language))

    def _predict(self, image: bytes, language: str) -> OcrText:
        engine = self._engine(_LANGUAGES.get(language, language))
        suffix = ".png" if image.startswith(b"\x89PNG") else ".jpg"
        with TemporaryDirectory(prefix="holdfast-ocr-") as folder:
            path = Path(folder, f"page{suffix}")
            path.write_bytes(image)
            try:
                results = list(engine.predict(str(path)))
                lines = tuple(line for result in results for line in _lines(result))
            except Exception as error:  # of any library below PaddleOCR
                raise ExtractionFailed(f"PaddleOCR cannot read this image: {error}") from error
        return OcrText("\n".join(line.text for line in lines), lines)

    def _engine(self, language: str) -> Any:
        if language not in self._engines:
            try:
                import paddleocr  # pyright: ignore[reportMissingImports]
            except ImportError as error:
                raise NotConfigured(
                    f"OCR by PP-OCRv5 needs PaddleOCR: pip install 'holdfast[paddleocr]' ({error})",
                    what="ocr",
                ) from error
            library: Any = paddleocr
            try:
                self._engines[language] = library.PaddleOCR(
                    lang=language,
                    ocr_version=self._version,
                    use_doc_orientation_classify=False,
                    use_doc_unwarping=False,
                    use_textline_orientation=False,
                )
            except Exception as error:  # no model of this language, or no way to download it
                raise NotConfigured(
                    f"PaddleOCR cannot load its models for {language!r:.40}: {error}", what="ocr"
                ) from error
        return self._engines[language]


def _lines(result: Any) -> Iterator[OcrLine]:
    """Read one result of ``predict``: a mapping, in newer releases below the key ``res``."""
    found: Mapping[str, Any] = result
    if "rec_texts" not in found:
        found = found["res"]
    texts, scores, places = found["rec_texts"], found["rec_scores"], found["rec_polys"]
    for text, score, corners in zip(texts, scores, places, strict=True):
        across = [float(corner[0]) for corner in corners]
        down = [float(corner[1]) for corner in corners]
        box = (min(across), min(down), max(across), max(down))
        if str(text).strip():
            yield OcrLine(str(text), box, round(float(score), 4))
