"""`ocr_engine`: the engine of OCR that a project names."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from holdfast.errors import InvalidRequest
from holdfast.integrations.reading.paddle_ocr import PaddleOcr
from holdfast.integrations.reading.recognition import OcrEngine
from holdfast.integrations.reading.tesseract import Tesseract
from holdfast.integrations.reading.textract import Textract

__all__ = ["ocr_engine"]

_NAMES = ("pp-ocrv5", "tesseract", "textract")


def ocr_engine(name: str, *, client: Any = None, region: str | None = None) -> OcrEngine:
    """Return the engine of this name: ``pp-ocrv5``, ``tesseract`` or ``textract``.

    ``pp-ocrv5`` is PaddleOCR. Where it is not installed, Tesseract takes its place; the engine's
    `OcrEngine.name` says so. ``client`` and ``region`` are for Textract.

    Raises:
        InvalidRequest: there is no engine of this name.
        NotConfigured: the engine needs what is not installed here.
    """
    match name:
        case "pp-ocrv5":
            if find_spec("paddleocr") is not None:
                return PaddleOcr()
            return Tesseract(name="tesseract (pp-ocrv5 is not installed)")
        case "tesseract":
            return Tesseract()
        case "textract":
            return Textract(client=client, region=region)
        case _:
            raise InvalidRequest(
                f"the OCR engine must be one of {', '.join(_NAMES)}, got {name!r:.80}",
                field="ocr_model",
            )
