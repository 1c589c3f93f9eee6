"""OCR: Tesseract as a real program, PaddleOCR by a recorded result, Textract by a stub."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from holdfast.errors import (
    ExtractionFailed,
    ExtractionUnavailable,
    InvalidRequest,
    NotConfigured,
)
from holdfast.integrations.reading import (
    OcrLine,
    PaddleOcr,
    ProgramBounds,
    Tesseract,
    Textract,
    ocr_engine,
)
from tests.integrations.reading.made_files import encoded, text_image
from tests.servers import component
from tests.servers.tesseract import tesseract_command

SECONDS = 60
IMAGE = encoded(text_image("Hello World"))


@pytest.fixture(scope="session")
def tesseract() -> str:
    with component.required():
        return tesseract_command()


# --- Tesseract ------------------------------------------------------------------------------------


async def test_tesseract_reads_lines_with_their_places(tesseract: str) -> None:
    image = encoded(text_image("Hello World\nSecond line", size=(900, 300)))
    found = await Tesseract(command=tesseract).recognize(image, language="en")
    assert found.text == "Hello World\nSecond line"
    first, second = found.lines
    assert first.confidence > 0.7
    left, top, right, bottom = first.box
    assert 30 <= left < right <= 900
    assert 40 <= top < bottom < second.box[1] + 10


async def test_tesseract_finds_nothing_on_an_empty_page(tesseract: str) -> None:
    found = await Tesseract(command=tesseract).recognize(encoded(text_image("")))
    assert (found.text, found.lines) == ("", ())


async def test_what_is_no_image_fails(tesseract: str) -> None:
    with pytest.raises(ExtractionFailed, match="cannot read this image"):
        await Tesseract(command=tesseract).recognize(b"not an image")


async def test_a_language_without_data_is_not_configured(tesseract: str) -> None:
    with pytest.raises(NotConfigured, match="apt-get install tesseract-ocr-xyz") as missing:
        await Tesseract(command=tesseract).recognize(IMAGE, language="xyz")
    assert missing.value.what == "ocr"


@pytest.mark.parametrize("language", ["", "en+", "../../etc", "-c", "en;rm"])
async def test_a_language_is_a_code(language: str) -> None:
    with pytest.raises(InvalidRequest, match="language must be"):
        await Tesseract(command=sys.executable).recognize(IMAGE, language=language)


async def test_without_the_program_ocr_is_not_configured() -> None:
    with pytest.raises(NotConfigured, match="apt-get install tesseract-ocr"):
        await Tesseract(command="no-such-tesseract").recognize(IMAGE)


def program(folder: Path, code: str) -> str:
    path = folder / "program"
    path.write_text(f"#!{sys.executable}\nimport os, resource, signal, sys, time\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_a_cancelled_call_ends_the_program(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    command = program(
        tmp_path,
        f"open({str(tmp_path / 'started')!r}, 'w').write(str(os.getpid()))\nsignal.pause()",
    )
    task = asyncio.create_task(Tesseract(command=command).recognize(IMAGE))
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECONDS):
        started = await loop.run_in_executor(None, (tmp_path / "started").read_text)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(started), 0)


@pytest.mark.parametrize(
    ("code", "bounds", "message"),
    [
        ("while True: pass", ProgramBounds(seconds=1), "too long"),
        ("signal.pause()", ProgramBounds(wall_seconds=0.5), "too long"),
        ("sys.stdout.write('x' * 10**6)", ProgramBounds(output_bytes_max=1000), "too long"),
        ("os.abort()", ProgramBounds(), "crashed on this image"),
        ("bytearray(10**9)", ProgramBounds(memory_bytes=300 * 1024**2), "MemoryError"),
        ("sys.exit('the words of the program')", ProgramBounds(), "the words of the program"),
    ],
)
async def test_a_program_has_bounds(
    code: str, bounds: ProgramBounds, message: str, tmp_path: Path
) -> None:
    engine = Tesseract(command=program(tmp_path, code), bounds=bounds)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(ExtractionFailed, match=message):
            await engine.recognize(IMAGE)


async def test_a_program_has_none_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    engine = Tesseract(command=program(tmp_path, "sys.exit(' '.join(os.environ))"))
    with pytest.raises(ExtractionFailed) as failed:
        await engine.recognize(IMAGE)
    assert "PATH" in str(failed.value)
    assert "AWS" not in str(failed.value)


# --- PaddleOCR ------------------------------------------------------------------------------------

# What `predict` of PaddleOCR 3 returned for a photo of a boarding pass, shortened to two lines.
RESULT: dict[str, Any] = {
    "input_path": "general_ocr_002.png",
    "page_index": None,
    "model_settings": {"use_doc_preprocessor": False, "use_textline_orientation": False},
    "dt_polys": [
        [[152, 22], [355, 22], [355, 66], [152, 66]],
        [[66, 173], [389, 173], [389, 205], [66, 205]],
    ],
    "text_det_params": {"limit_side_len": 64, "limit_type": "min", "thresh": 0.3},
    "text_type": "general",
    "textline_orientation_angles": [-1, -1],
    "text_rec_score_thresh": 0.0,
    "rec_texts": ["登机牌", "BOARDING PASS", " "],
    "rec_scores": [0.9985201, 0.9771978, 0.1],
    "rec_polys": [
        [[152, 22], [355, 24], [355, 66], [150, 66]],
        [[66, 173], [389, 173], [389, 205], [66, 205]],
        [[0, 0], [1, 0], [1, 1], [0, 1]],
    ],
    "rec_boxes": [[152, 22, 355, 66], [66, 173, 389, 205], [0, 0, 1, 1]],
}


class FakePaddle(ModuleType):
    """The module `paddleocr`, whose class notes how it is used."""

    def __init__(self, results: Any) -> None:
        super().__init__("paddleocr")
        self.made: list[dict[str, Any]] = []
        self.seen: list[bytes] = []
        outer = self

        class Engine:
            def __init__(self, **options: Any) -> None:
                outer.made.append(options)

            def predict(self, path: str) -> Any:
                outer.seen.append(Path(path).read_bytes())
                if isinstance(results, Exception):
                    raise results
                return results

        self.PaddleOCR = Engine


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_result_of_paddleocr_becomes_lines(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakePaddle([{"res": RESULT} if wrapped else RESULT])
    monkeypatch.setitem(sys.modules, "paddleocr", fake)
    engine = PaddleOcr()
    found = await engine.recognize(IMAGE, language="zh")
    assert found.text == "登机牌\nBOARDING PASS"
    assert found.lines == (
        OcrLine("登机牌", (150, 22, 355, 66), 0.9985),
        OcrLine("BOARDING PASS", (66, 173, 389, 205), 0.9772),
    )
    await engine.recognize(IMAGE, language="zh")
    await engine.recognize(IMAGE, language="en")
    assert fake.seen == [IMAGE] * 3
    # One engine for each language: it loads its models when it is made.
    assert [(options["lang"], options["ocr_version"]) for options in fake.made] == [
        ("ch", "PP-OCRv5"),
        ("en", "PP-OCRv5"),
    ]


@pytest.mark.parametrize("results", [ValueError("bad image"), [{"res": {}}], [{}]])
async def test_a_failure_of_paddleocr_is_told(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "paddleocr", FakePaddle(results))
    with pytest.raises(ExtractionFailed, match="PaddleOCR cannot read"):
        await PaddleOcr().recognize(IMAGE)


async def test_without_paddleocr_it_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paddleocr", None)
    with pytest.raises(NotConfigured, match=r"pip install 'holdfast\[paddleocr\]'"):
        await PaddleOcr().recognize(IMAGE)


# --- Textract -------------------------------------------------------------------------------------


def textract() -> tuple[Textract, Stubber]:
    client: Any = boto3.client(
        "textract",
        region_name="eu-central-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    stubber = Stubber(client)
    stubber.activate()
    return Textract(client=client), stubber


async def test_textract_returns_lines() -> None:
    engine, stubber = textract()
    place = {"Left": 0.1, "Top": 0.2, "Width": 0.3, "Height": 0.05}
    line = {
        "BlockType": "LINE",
        "Text": "Hello World",
        "Confidence": 99.5,
        "Geometry": {"BoundingBox": place},
    }
    answer = {
        "DocumentMetadata": {"Pages": 1},
        "Blocks": [{"BlockType": "PAGE"}, line, {"BlockType": "WORD", "Text": "Hello"}],
    }
    stubber.add_response("detect_document_text", answer, {"Document": {"Bytes": IMAGE}})
    found = await engine.recognize(IMAGE)
    assert found.text == "Hello World"
    assert found.lines[0].box == pytest.approx((0.1, 0.2, 0.4, 0.25))
    assert found.lines[0].confidence == 0.995


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ThrottlingException", ExtractionUnavailable),
        ("ProvisionedThroughputExceededException", ExtractionUnavailable),
        ("UnsupportedDocumentException", ExtractionFailed),
        ("AccessDeniedException", NotConfigured),
    ],
)
async def test_an_error_of_textract_says_whether_to_retry(
    code: str, error: type[Exception]
) -> None:
    engine, stubber = textract()
    stubber.add_client_error("detect_document_text", code, "no")
    with pytest.raises(error) as caught:
        await engine.recognize(IMAGE)
    assert type(caught.value) is error


async def test_an_image_that_textract_does_not_take_is_not_sent() -> None:
    engine, _ = textract()
    with pytest.raises(ExtractionFailed, match="at most"):
        await engine.recognize(bytes(11 * 1024**2))


# --- by name --------------------------------------------------------------------------------------


def test_an_engine_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ocr_engine("tesseract").name == "tesseract"
    assert ocr_engine("textract", client=object()).name == "textract"
    monkeypatch.setattr("holdfast.integrations.reading.ocr_engines.find_spec", lambda name: name)
    assert ocr_engine("pp-ocrv5").name == "pp-ocrv5"
    with pytest.raises(InvalidRequest, match="pp-ocrv5, tesseract, textract, got 'magic'"):
        ocr_engine("magic")


def test_where_paddleocr_is_missing_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.integrations.reading.ocr_engines.find_spec", lambda name: None)
    engine = ocr_engine("pp-ocrv5")
    assert isinstance(engine, Tesseract)
    assert engine.name == "tesseract (pp-ocrv5 is not installed)"
