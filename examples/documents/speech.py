"""The step ``transcribe``: the words of a sound or a film, as segments of about a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict

from documents.pieces import store_contents
from documents.processing import Desk, Processing, Work
from documents.segments import SegmentContent
from documents.steps import ATTEMPTS, TRANSIENT, StepFailed
from holdfast import Context, Graph, Retry
from holdfast.errors import ExtractionUnavailable
from holdfast.integrations.reading import SpokenSegment

__all__ = ["add_transcription", "spoken_minutes"]

_SECONDS = 60.0
_CHARS = 4_000


class Transcribed(TypedDict, total=False):
    """What the transcriber made."""

    transcribed: str
    segments: int


class StoredTranscript(TypedDict):
    """What is recorded of a transcript."""

    catalogue: str
    segments: int


def add_transcription(
    graph: Graph[Processing], desk: Desk
) -> Callable[[Processing, Context], object]:
    """Add the node ``transcribe`` to the graph, and return it."""

    @graph.node(retry=Retry(attempts=ATTEMPTS, on=TRANSIENT))
    async def transcribe(state: Processing, ctx: Context) -> Transcribed:
        job = state.job
        if job is None or "transcribe" not in state.needed:
            return {}
        work = Work(desk, ctx, job)

        async def transcribed(language: str, *, idempotency_key: str = "") -> StoredTranscript:
            """Transcribe the file. The key names the job, so that it is paid once."""
            transcriber = desk.transcriber
            if job.uri.startswith("s3://"):
                found = await transcriber.transcribe(
                    job.uri, language=language, key=idempotency_key
                )
            else:
                async with work.file() as path:
                    found = await transcriber.transcribe(
                        path, language=language, key=idempotency_key
                    )
            contents = list(spoken_minutes(found.segments))
            return {
                "catalogue": await store_contents(work, "transcribed", contents),
                "segments": len(contents),
            }

        async with work.steps.running("transcribe"):
            caller = ctx.with_options(
                retry=Retry(attempts=ATTEMPTS, on=(ExtractionUnavailable, *TRANSIENT))
            )
            stored = await caller.call(transcribed, job.language)
            if not stored["segments"]:
                raise StepFailed(f"nothing is said in {job.name!r:.100}")
            await work.steps.update(total_segments=stored["segments"])
        return {"transcribed": stored["catalogue"], "segments": stored["segments"]}

    return transcribe


def spoken_minutes(spoken: Iterable[SpokenSegment]) -> Iterable[SegmentContent]:
    """Yield segments of about a minute of what was said."""
    number, parts, start = 1, list[str](), 0.0
    end = 0.0
    for each in spoken:
        if parts and (each.end_seconds - start > _SECONDS or sum(map(len, parts)) > _CHARS):
            yield _minute(number, parts, start, end)
            number, parts = number + 1, []
        start = start if parts else each.start_seconds
        end = each.end_seconds
        if each.text.strip():
            parts.append(each.text.strip())
    if parts:
        yield _minute(number, parts, start, end)


def _minute(number: int, parts: list[str], start: float, end: float) -> SegmentContent:
    return SegmentContent(
        index=number,
        title=f"{int(start) // 60}:{int(start) % 60:02}",
        text=" ".join(parts),
        source="transcript",
        start_seconds=start,
        end_seconds=end,
    )
