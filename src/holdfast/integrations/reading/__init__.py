"""Reads documents: their types, segments, OCR and transcription. Needs holdfast[documents].

Parsers of files run in child processes with limits. The adapters of AWS need holdfast[aws].
"""

from holdfast.integrations.reading.confined_program import ProgramBounds
from holdfast.integrations.reading.data_automation import (
    AutomationPage,
    AutomationResult,
    BedrockDataAutomation,
    DataAutomation,
    UnconfiguredDataAutomation,
)
from holdfast.integrations.reading.file_types import HEAD_BYTES, FileType, sniffed_type
from holdfast.integrations.reading.ocr_engines import ocr_engine
from holdfast.integrations.reading.paddle_ocr import PaddleOcr
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import (
    FileKind,
    FileOutline,
    ReadSegment,
    RejectionReason,
    SegmentFailure,
    Table,
)
from holdfast.integrations.reading.reader import FileReader
from holdfast.integrations.reading.recognition import OcrEngine, OcrLine, OcrText
from holdfast.integrations.reading.tesseract import Tesseract
from holdfast.integrations.reading.textract import Textract
from holdfast.integrations.reading.transcription import (
    AmazonTranscribe,
    SpokenSegment,
    Transcriber,
    Transcript,
    UnconfiguredTranscriber,
)

__all__ = [
    "HEAD_BYTES",
    "AmazonTranscribe",
    "AutomationPage",
    "AutomationResult",
    "BedrockDataAutomation",
    "DataAutomation",
    "FileKind",
    "FileOutline",
    "FileReader",
    "FileType",
    "OcrEngine",
    "OcrLine",
    "OcrText",
    "PaddleOcr",
    "ProgramBounds",
    "ReadLimits",
    "ReadSegment",
    "RejectionReason",
    "SegmentFailure",
    "SpokenSegment",
    "Table",
    "Tesseract",
    "Textract",
    "Transcriber",
    "Transcript",
    "UnconfiguredDataAutomation",
    "UnconfiguredTranscriber",
    "ocr_engine",
    "sniffed_type",
]
