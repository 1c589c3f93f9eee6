"""`Textract`: OCR by Amazon Textract. Needs holdfast[aws]."""

# boto3 has no types: what comes from it is Any here.
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.errors import ExtractionFailed
from holdfast.integrations.reading.aws_calls import AwsCalls
from holdfast.integrations.reading.recognition import OcrLine, OcrText

__all__ = ["Textract"]

_IMAGE_BYTES_MAX = 10 * 1024**2


class Textract:
    """Recognises text with DetectDocumentText, which charges for each page.

    ``client`` is a boto3 client for ``textract``. Boxes are shares of the image, from 0 to 1, as
    Textract returns them. It knows the language by itself.
    """

    def __init__(
        self, *, client: Any = None, region: str | None = None, name: str = "textract"
    ) -> None:
        """Make an engine.

        Raises:
            NotConfigured: boto3 is not installed.
        """
        self.name = name
        self._calls = AwsCalls("textract", what="ocr", client=client, region=region)

    async def recognize(self, image: bytes, *, language: str = "en") -> OcrText:
        """Return the text in an image. ``language`` is not used."""
        if len(image) > _IMAGE_BYTES_MAX:
            raise ExtractionFailed(f"Textract takes images of at most {_IMAGE_BYTES_MAX:,} bytes")
        answer: Any = await self._calls.run(
            lambda client: client.detect_document_text(Document={"Bytes": image})
        )
        lines = tuple(_lines(answer))
        return OcrText("\n".join(line.text for line in lines), lines)


def _lines(answer: Any) -> Iterator[OcrLine]:
    try:
        for block in answer["Blocks"]:
            if block["BlockType"] != "LINE":
                continue
            place = block["Geometry"]["BoundingBox"]
            left, top = float(place["Left"]), float(place["Top"])
            box = (left, top, left + float(place["Width"]), top + float(place["Height"]))
            yield OcrLine(str(block["Text"]), box, round(float(block["Confidence"]) / 100, 4))
    except (KeyError, TypeError, ValueError) as error:
        raise ExtractionFailed(f"the answer of Textract cannot be read: {error!r}") from error
