"""The application as a whole: its graph, its models, and what they use on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from documents.cache import FileCache
from documents.models import models
from documents.pipeline import documents_graph
from documents.processing import Desk, Processing
from documents.settings import Settings, settings_from
from holdfast import Graph, Holdfast, Model
from holdfast.integrations.crawling import CrawlLimits
from holdfast.integrations.reading import (
    AmazonTranscribe,
    BedrockDataAutomation,
    DataAutomation,
    FileReader,
    ReadLimits,
    Transcriber,
    UnconfiguredTranscriber,
    ocr_engine,
)

__all__ = ["Application", "application"]

_TEXT_CHARS_MAX = 200_000
_CRAWL = CrawlLimits(pages_max=200)


@dataclass(frozen=True, kw_only=True)
class Application:
    """What a process needs to run the pipeline."""

    settings: Settings
    graph: Graph[Processing]
    models: Mapping[str, Model]
    desk: Desk

    def open(self, **options: Any) -> Holdfast:
        """Return the store of the application; ``options`` are those of `Holdfast`."""
        if self.settings.store_url.startswith("sqlite:"):
            self.settings.data.mkdir(parents=True, exist_ok=True)
        chosen: dict[str, Any] = {"models": self.models, **options}
        return Holdfast(self.settings.store_url, **chosen)


def application(settings: Settings | None = None, **changes: Any) -> Application:
    """Return the application with these settings, by default those of the environment.

    ``changes`` replace what the nodes use: fields of `Desk`, and ``models``.
    """
    settings = settings or settings_from()
    known: Mapping[str, Model] = changes.pop("models", None) or models(settings)
    parts: dict[str, Any] = {
        "settings": settings,
        "cache": FileCache(settings.cache, bytes_max=settings.cache_bytes_max),
        "reader": FileReader(
            limits=ReadLimits(
                text_chars_max=_TEXT_CHARS_MAX, image_pixels_max=settings.image_pixels
            )
        ),
        "recognizer": partial(ocr_engine, region=settings.region),
        "transcriber": _transcriber(settings),
        "automation": _automation(settings),
        "crawl_limits": _CRAWL,
    }
    desk = Desk(**(parts | changes))
    return Application(settings=settings, graph=documents_graph(desk), models=known, desk=desk)


def _transcriber(settings: Settings) -> Transcriber:
    if not settings.transcribe_output:
        return UnconfiguredTranscriber()
    return AmazonTranscribe(output=settings.transcribe_output, region=settings.region)


def _automation(settings: Settings) -> DataAutomation | None:
    if settings.data_automation is None or settings.automation_output is None:
        return None
    return BedrockDataAutomation(
        output=settings.automation_output,
        profile=settings.data_automation,
        region=settings.region,
    )
