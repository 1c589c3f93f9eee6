"""Reads an image, each frame of a TIFF as a segment. Other animations are their first frame."""

from __future__ import annotations

from typing import Any, BinaryIO

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from holdfast.integrations.reading.parsing import (
    bounded_image,
    check_pixels,
    check_segments,
    encoded_image,
    reject,
)
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import ReadSegment

__all__ = ["ImageParser"]

# No format that runs another program, such as EPS.
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "TIFF", "WEBP", "BMP")
_LINE_ART = ("PNG", "GIF", "BMP")


class ImageParser:
    """Reads frames of an image, each made smaller where it is larger than a page."""

    def __init__(self, file: BinaryIO, limits: ReadLimits, *, images: bool = True) -> None:
        self._limits = limits
        self._images = images
        # The limit is ours: Pillow's would only warn.
        Image.MAX_IMAGE_PIXELS = None
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            self._image: Any = Image.open(file, formats=_FORMATS)
        except (UnidentifiedImageError, SyntaxError, ValueError, OSError, KeyError) as error:
            reject("damaged", f"the image cannot be read: {error}")
        check_pixels(self._image.size, limits)

    def outline(self) -> tuple[int, str]:
        """Return the number of frames. One frame is unpacked, to see that the file is whole."""
        if self._image.format != "TIFF":
            self._load()
            return 1, ""
        count = 0
        try:
            while True:
                self._image.seek(count)
                check_pixels(self._image.size, self._limits)
                count += 1
                check_segments(count, self._limits)
        except EOFError:
            return count, ""
        except (SyntaxError, ValueError, OSError, KeyError, TypeError) as error:
            reject("damaged", f"frame {count + 1} of the image cannot be read: {error}")

    def segment(self, index: int) -> ReadSegment:
        """Return one frame, which has to be recognised."""
        try:
            self._image.seek(index)
        except (EOFError, SyntaxError, ValueError, OSError, KeyError, TypeError) as error:
            reject("damaged", f"the frame cannot be found: {error}")
        check_pixels(self._image.size, self._limits)
        self._load()
        image, image_type = None, None
        if self._images:
            frame: Any = bounded_image(self._upright(), self._limits.image_pixels_max)
            photo = self._image.format not in _LINE_ART
            image, image_type = encoded_image(frame, photo=photo)
        return ReadSegment(
            index=0,
            image=image,
            image_type=image_type,  # pyright: ignore[reportArgumentType]
            needs_ocr=True,
        )

    def _upright(self) -> Any:
        """Return the frame as a camera says that it has to be turned, if it says so legibly."""
        try:
            return ImageOps.exif_transpose(self._image)
        except (SyntaxError, ValueError, OSError, KeyError, TypeError):
            return self._image

    def _load(self) -> None:
        try:
            self._image.load()
        except (OSError, SyntaxError, ValueError, EOFError, KeyError, TypeError) as error:
            reject("truncated", f"the image is truncated or damaged: {error}")
