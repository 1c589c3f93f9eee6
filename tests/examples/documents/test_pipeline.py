"""Documents of each type, from the file to the summary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from documents.entities import find_entity
from documents.shelf import load_json
from holdfast.documents.search import SegmentSearch
from holdfast.errors import FileRejected
from holdfast.integrations.crawling import CrawlLimits
from holdfast.integrations.reading import SpokenSegment, Transcript, ocr_engine
from holdfast.model.document import STEPS
from tests.examples.documents.conftest import (
    PROJECT,
    SENTENCE,
    Bench,
    CountedModels,
    KnownText,
    Working,
)
from tests.examples.documents.files import FILES, pdf_file, scan_file, sound_file
from tests.integrations.crawling.site import QUICK, page, running_site

_AFTER = {"segment_builder", "segment_analyzer", "graph_builder", "document_summarizer"}


@pytest.mark.parametrize("name", FILES)
async def test_a_file_is_read_analysed_and_summed_up(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    FILES[name](tmp_path / name)
    workflow = await bench.processed(tmp_path / name)
    assert (workflow.status, workflow.error, workflow.total_segments) == ("completed", None, 1)
    read = {"format_parser", "paddleocr_processor"} if name == "a.pdf" else {"format_parser"}
    done = {"segment_prep", *read, *_AFTER}
    assert await bench.statuses(workflow) == {"completed": done, "skipped": set(STEPS) - done}
    (segment,) = await bench.segments(workflow)
    assert (segment.status, segment.error) == ("completed", None)
    (analysis,) = segment.image_analysis
    assert {"Elm Bank", "Fir Works"} <= set(analysis["entities"])
    content = json.loads(await bench.hf.documents.files.read_blob(segment.s3_key or ""))
    assert SENTENCE in " ".join(content["text"].split())
    assert "evil" not in content["text"]


async def test_what_a_document_says_is_found(bench: Bench, tmp_path: Path) -> None:
    pdf_file(tmp_path / "a.pdf", ["Nothing here.", SENTENCE])
    added = await bench.add(tmp_path / "a.pdf")
    workflow = await bench.ended(added)
    files, state = bench.hf.documents.files, await bench.run(added).result()

    async def load(uri: str) -> Any:
        return await load_json(files, uri, tenant="default")

    found = await find_entity(load, state.graph, "elm bank")
    assert found is not None
    assert (found.name, found.kind, found.segments) == ("Elm Bank", "organization", [2])
    (relation,) = found.relations
    assert (relation.relation, relation.target) == ("pays", "Fir Works")
    summary = await load(state.summary)
    assert "Elm Bank pays Fir Works" in summary["summary"]
    search = bench.hf.documents.search
    assert isinstance(search, SegmentSearch)
    (hit,) = await search.search("default", "who says it, Silva?", project=PROJECT)
    assert (hit.document, hit.workflow, hit.index) == (added.document, workflow.id, 2)


async def test_pages_without_text_are_recognized(
    bench: Bench, ocr: KnownText, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", ["A page with text.", ""])
    workflow = await bench.processed(tmp_path / "a.pdf")
    text, scan = await bench.segments(workflow)
    assert ocr.images == 1
    assert text.image_uri
    assert scan.image_uri
    content = json.loads(await bench.hf.documents.files.read_blob(scan.s3_key or ""))
    assert (content["text"], content["source"]) == (SENTENCE, "ocr")
    assert content["ocr"] == {"engine": "known", "confidence": 0.9}
    image = await bench.hf.documents.files.read_blob(scan.image_uri)
    assert image.startswith((b"\x89PNG", b"\xff\xd8"))


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
async def test_the_ocr_model_of_the_project_chooses_the_engine(
    working: Working, tmp_path: Path
) -> None:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (900, 200), 255)
    ImageDraw.Draw(image).text((20, 50), "Elm Bank", fill=0, font=ImageFont.load_default(60))
    image.save(tmp_path / "a.png")
    async with working(recognizer=ocr_engine) as bench:
        await bench.hf.documents.projects.update(PROJECT, ocr_model="tesseract")
        workflow = await bench.processed(tmp_path / "a.png")
        (segment,) = await bench.segments(workflow)
        content = json.loads(await bench.hf.documents.files.read_blob(segment.s3_key or ""))
    assert "Elm Bank" in content["text"]
    assert content["ocr"]["engine"] == "tesseract"


async def test_blank_pages_are_not_asked_about_and_equal_pages_once(
    bench: Bench, counted: CountedModels, ocr: KnownText, tmp_path: Path
) -> None:
    ocr.text = " "
    pdf_file(tmp_path / "a.pdf", [SENTENCE, "", SENTENCE, SENTENCE])
    workflow = await bench.processed(tmp_path / "a.pdf")
    assert [segment.status for segment in await bench.segments(workflow)] == ["completed"] * 4
    # One for the pages, and one for the document.
    assert sorted(counted.asked.values()) == [1, 1]
    again = await bench.hf.documents.uploads.process_again(workflow.document)
    assert (await bench.ended(again)).status == "completed"
    assert sorted(counted.asked.values()) == [1, 1]


async def test_sound_waits_for_a_transcriber(working: Working, tmp_path: Path) -> None:
    sound_file(tmp_path / "a.wav")
    async with working() as bench:
        added = await bench.add(tmp_path / "a.wav")
        workflow = await bench.ended(added)
        assert workflow.status == "failed"
        assert "not configured" in (workflow.error or "")
        statuses = await bench.statuses(workflow)
        # That step alone: nothing else has failed, and nothing that was done is done again.
        assert statuses["failed"] == {"transcribe"}
        assert statuses["completed"] == {"segment_prep"}
        assert statuses["pending"] == _AFTER

    class Speech:
        keys: list[str] = []  # noqa: RUF012

        async def transcribe(self, source: Any, *, language: str = "en", key: str) -> Transcript:
            self.keys.append(key)
            said = [SpokenSegment(50.0 * n, 50.0 * n + 49, SENTENCE) for n in range(3)]
            return Transcript(segments=tuple(said))

    async with working(transcriber=Speech()) as bench:
        await bench.run(added).retry()
        workflow = await bench.ended(added)
        assert (workflow.status, workflow.error, workflow.total_segments) == ("completed", None, 3)
        assert len(Speech.keys) == 1
        segments = await bench.segments(workflow)
        content = json.loads(await bench.hf.documents.files.read_blob(segments[1].s3_key or ""))
        assert (content["source"], content["title"]) == ("transcript", "0:50")


async def test_a_site_is_crawled(working: Working) -> None:
    async with running_site() as site:
        site.pages["/"] = page("/two", "/gone", text=f"{SENTENCE} The first page of the site.")
        site.pages["/two"] = page(text="Oak Bank sues Elm Bank in the second page of the site.")
        limits = CrawlLimits(**QUICK)
        async with working(crawl_limits=limits, crawl_allowed=(site.host,)) as bench:
            d = bench.hf.documents
            # Uploads refuse the address of a private place: put it where a test may.
            document = await d.add(
                PROJECT,
                file_uri=site.url("/"),
                file_name="site",
                file_type="text/html",
                web=True,
            )
            workflow = await d.begin(document.id)
            run = await bench.hf.start(
                bench.app.graph, {"workflow": workflow.id}, id=f"doc-{workflow.id}"
            )
            state = await run.result(timeout=60)
            assert state.segments == 2
            segments = await bench.segments(workflow)
            content = json.loads(await d.files.read_blob(segments[1].s3_key or ""))
            assert (content["address"], content["source"]) == (site.url("/two"), "web")
            statuses = await bench.statuses(workflow)
            assert "webcrawler" in statuses["completed"]
            assert "format_parser" in statuses["skipped"]


async def test_a_file_that_is_not_what_its_name_says_is_rejected(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "a.pdf").write_bytes(b"MZ\x90\0 this is a program")
    with pytest.raises(FileRejected):
        await bench.add(tmp_path / "a.pdf")


async def test_a_damaged_file_fails_with_its_reason(bench: Bench, tmp_path: Path) -> None:
    pdf_file(tmp_path / "whole.pdf", [SENTENCE] * 3)
    whole = (tmp_path / "whole.pdf").read_bytes()
    (tmp_path / "a.pdf").write_bytes(whole[: len(whole) // 3])
    workflow = await bench.processed(tmp_path / "a.pdf")
    assert workflow.status == "failed"
    assert (workflow.error or "").startswith("segment_prep: ")
    steps = await bench.steps(workflow)
    assert steps["segment_prep"].status == "failed"
    assert steps["format_parser"].status == "pending"


async def test_an_image_is_a_segment(bench: Bench, tmp_path: Path) -> None:
    scan_file(tmp_path / "a.png")
    workflow = await bench.processed(tmp_path / "a.png")
    (segment,) = await bench.segments(workflow)
    assert (workflow.status, segment.image_analysis[0]["entities"][0]) == ("completed", "Elm Bank")
