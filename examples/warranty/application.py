"""The application as a whole: its graph and its models, and a store with the sample documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast import Graph, Holdfast, Model, Notifier, ReviewOptions
from holdfast.clock import Clock
from warranty.arrivals import Arrivals
from warranty.documents import Warranty
from warranty.folder import DocumentFolder
from warranty.models import models
from warranty.notices import Notices, Outbox, Topic
from warranty.pipeline import warranty_graph
from warranty.reading import LocalReader, Readers, TextractReader
from warranty.settings import Settings, settings_from

__all__ = ["SAMPLES", "Application", "application", "prepare"]

SAMPLES = Path(__file__).parent / "documents"
"""Sample documents: low, medium and high risk, and one that is locked by a password."""


@dataclass(frozen=True, kw_only=True)
class Application:
    """What a process needs to run the pipeline."""

    settings: Settings
    graph: Graph[Warranty]
    models: Mapping[str, Model]
    notices: Notices
    reviews: ReviewOptions
    """How reviewers are told of reviews."""

    def open(self, **options: Any) -> Holdfast:
        """Return the store of the application; ``options`` are those of `Holdfast`."""
        if self.settings.store_url.startswith("sqlite:"):  # on Lambda no folder can be made
            self.settings.data.mkdir(parents=True, exist_ok=True)
        chosen: dict[str, Any] = {"models": self.models, "reviews": self.reviews, **options}
        return Holdfast(self.settings.store_url, **chosen)

    def arrivals(self, hf: Holdfast) -> Arrivals:
        """Return the ways in which documents arrive."""
        return Arrivals(hf, self.graph, DocumentFolder(self.settings.documents))


def application(settings: Settings | None = None, *, clock: Clock | None = None) -> Application:
    """Return the application with these settings, by default those of the environment."""
    settings = settings or settings_from()
    known = models(settings)
    notices: Notices = Outbox(settings.outbox)
    if settings.topic:
        notices = Topic(settings.topic, _aws_client("sns", settings))
    local = LocalReader(DocumentFolder(settings.documents), settings.passwords)
    textract = TextractReader(cache(lambda: _aws_client("textract", settings)), clock=clock)
    return Application(
        settings=settings,
        graph=warranty_graph(
            Readers(local, textract),
            notices,
            known,
            reviewers=settings.reviewers,
            escalate_to=settings.escalate_to,
            clock=clock,
        ),
        models=known,
        notices=notices,
        reviews=ReviewOptions(notifiers=_notifiers(settings)),
    )


def _notifiers(settings: Settings) -> list[Notifier]:
    if settings.review_topic is None:
        return []
    from holdfast.integrations.sns import SnsNotifier

    return [SnsNotifier(settings.review_topic, client=_aws_client("sns", settings))]


async def prepare(hf: Holdfast, app: Application) -> dict[str, str]:
    """Add the sample documents to a store; return the id of each run by the name of its file.

    A repetition finds the runs that exist. A worker of the same application has to run them.
    """
    arrivals = app.arrivals(hf)
    added: dict[str, str] = {}
    for path in sorted(SAMPLES.iterdir()):
        added[path.name] = (await arrivals.add_file(path)).id
    return added


def _aws_client(service: str, settings: Settings) -> Any:
    import boto3

    session: Any = boto3
    return session.client(service, region_name=settings.region, endpoint_url=settings.endpoint)
