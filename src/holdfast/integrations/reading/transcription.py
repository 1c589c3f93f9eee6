"""`Transcriber`: turns recordings into text, with Amazon Transcribe where it is set up."""

# boto3 has no types: what comes from it is Any here.
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ExtractionFailed, NotConfigured
from holdfast.integrations.reading.aws_calls import AwsCalls, S3Place, job_name, polled, s3_place
from holdfast.integrations.reading.opened_file import OpenedFile
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.model.durations import Duration, seconds_of

__all__ = [
    "AmazonTranscribe",
    "SpokenSegment",
    "Transcriber",
    "Transcript",
    "UnconfiguredTranscriber",
]

_TRANSCRIPT_BYTES_MAX = 64 * 1024**2
_MEDIA_BYTES_MAX = 2 * 1024**3
_WORDS_MAX = 80
# The latter are the full-width ones of Chinese and Japanese.
_SENTENCE_ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
_LANGUAGES: Final = {
    "ar": "ar-SA",
    "da": "da-DK",
    "de": "de-DE",
    "en": "en-US",
    "es": "es-ES",
    "fi": "fi-FI",
    "fr": "fr-FR",
    "he": "he-IL",
    "hi": "hi-IN",
    "it": "it-IT",
    "ja": "ja-JP",
    "ko": "ko-KR",
    "nl": "nl-NL",
    "no": "no-NO",
    "pl": "pl-PL",
    "pt": "pt-PT",
    "ru": "ru-RU",
    "sv": "sv-SE",
    "tr": "tr-TR",
    "uk": "uk-UA",
    "vi": "vi-VN",
    "zh": "zh-CN",
}
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}-[A-Z]{2}")


class SpokenSegment(msgspec.Struct, frozen=True):
    """A sentence or so of a recording, and when it is spoken."""

    start_seconds: float
    end_seconds: float
    text: str


class Transcript(msgspec.Struct, frozen=True):
    """What is spoken in a recording."""

    segments: tuple[SpokenSegment, ...]

    @property
    def text(self) -> str:
        """All of it, with one line for each segment."""
        return "\n".join(segment.text for segment in self.segments)


class Transcriber(Protocol):
    """Turns recordings into text."""

    async def transcribe(
        self, source: str | os.PathLike[str], *, key: str, language: str = "en"
    ) -> Transcript:
        """Return what is spoken in a recording: a local file, or an address ``s3://…``.

        ``key`` is the idempotency key of the call. A repeated call with the same key finds the
        same job, and is not charged again.

        Raises:
            NotConfigured: there is no transcriber here, or it lacks permissions.
            ExtractionFailed: this recording cannot be transcribed.
            ExtractionUnavailable: the service does not respond, or is too busy; try again.
        """
        ...


class UnconfiguredTranscriber:
    """Stands for a transcriber where none is set up: each call says what to do."""

    async def transcribe(
        self, source: str | os.PathLike[str], *, key: str, language: str = "en"
    ) -> Transcript:
        """Raise `NotConfigured`.

        Raises:
            NotConfigured: always.
        """
        raise NotConfigured(
            "transcription is not configured: pass a transcriber, such as "
            "AmazonTranscribe(output='s3://bucket/prefix/')",
            what="transcription",
        )


class AmazonTranscribe:
    """Transcribes recordings with Amazon Transcribe.

    ``output`` is where Transcribe puts its results, and where local files are uploaded to. The
    caller's role needs ``transcribe:StartTranscriptionJob``, ``transcribe:GetTranscriptionJob``,
    ``s3:GetObject`` and ``s3:PutObject`` there. Nothing there is deleted: give the prefix a
    lifecycle rule. ``client`` and ``s3`` are clients of boto3.
    """

    def __init__(
        self,
        *,
        output: str,
        region: str | None = None,
        client: Any = None,
        s3: Any = None,
        timeout: Duration = 4 * 3600,
        clock: Clock | None = None,
    ) -> None:
        """Make a transcriber. Nothing is sent before it is asked.

        Raises:
            InvalidRequest: the output is not an address of S3.
            NotConfigured: boto3 is not installed.
        """
        place = s3_place(output, "output")
        self._output = S3Place(place.bucket, place.key.strip("/") + "/" if place.key else "")
        self._timeout_seconds = seconds_of(timeout, "timeout")
        self._clock = clock or SystemClock()
        self._calls = AwsCalls("transcribe", what="transcription", client=client, region=region)
        self._s3 = AwsCalls("s3", what="transcription", client=s3, region=region)

    async def transcribe(
        self, source: str | os.PathLike[str], *, key: str, language: str = "en"
    ) -> Transcript:
        """Start a job, or find the one that an earlier attempt started, and wait for its result."""
        name = job_name(key)
        result = S3Place(self._output.bucket, f"{self._output.key}{name}.json")
        if await self._status(name) is None:
            await self._start(name, await self._media(source, name), language, result)

        async def ask() -> Any:
            job = await self._status(name)
            if job is None:
                raise ExtractionFailed(f"Transcribe no longer knows the job {name}")
            return job if job["TranscriptionJobStatus"] in ("COMPLETED", "FAILED") else None

        job = await polled(
            ask, clock=self._clock, seconds_max=self._timeout_seconds, what=f"the job {name}"
        )
        if job["TranscriptionJobStatus"] == "FAILED":
            raise ExtractionFailed(
                f"Transcribe failed: {str(job.get('FailureReason', 'no reason given'))[:500]}"
            )
        return _transcript(await self._s3.read_object(result, bytes_max=_TRANSCRIPT_BYTES_MAX))

    async def _media(self, source: str | os.PathLike[str], name: str) -> str:
        if isinstance(source, str) and source.startswith("s3://"):
            return s3_place(source, "source").uri
        key = f"{self._output.key}{name}/media{Path(source).suffix.lower()}"
        place = S3Place(self._output.bucket, key)
        with OpenedFile(source, ReadLimits(file_bytes_max=_MEDIA_BYTES_MAX)) as file:
            with os.fdopen(os.dup(file.descriptor), "rb") as stream:
                await self._s3.run(
                    lambda client: client.upload_fileobj(stream, place.bucket, place.key)
                )
            file.check_unchanged()
        return place.uri

    async def _start(self, name: str, media: str, language: str, result: S3Place) -> None:
        code = _LANGUAGES.get(language, language)
        spoken: dict[str, Any] = (
            {"LanguageCode": code} if _LANGUAGE_CODE.fullmatch(code) else {"IdentifyLanguage": True}
        )
        request: dict[str, Any] = {
            "TranscriptionJobName": name,
            "Media": {"MediaFileUri": media},
            "OutputBucketName": result.bucket,
            "OutputKey": result.key,
            **spoken,
        }

        def start(client: Any) -> None:
            # Another attempt of the same call may have started it meanwhile.
            with suppress(client.exceptions.ConflictException):
                client.start_transcription_job(**request)

        await self._calls.run(start)

    async def _status(self, name: str) -> Any:
        def get(client: Any) -> Any:
            try:
                answer = client.get_transcription_job(TranscriptionJobName=name)
            except (
                client.exceptions.NotFoundException,
                client.exceptions.BadRequestException,  # what Transcribe says of unknown names
            ):
                return None
            return answer["TranscriptionJob"]

        return await self._calls.run(get)


class _Alternative(msgspec.Struct):
    content: str


class _Item(msgspec.Struct):
    type: str
    alternatives: list[_Alternative]
    start_time: str = ""
    end_time: str = ""


class _AudioSegment(msgspec.Struct):
    transcript: str
    start_time: str
    end_time: str


class _Results(msgspec.Struct):
    items: list[_Item] = []
    audio_segments: list[_AudioSegment] = []


class _Document(msgspec.Struct):
    results: _Results


def _transcript(data: bytes) -> Transcript:
    try:
        results = msgspec.json.decode(data, type=_Document).results
        if results.audio_segments:
            return Transcript(
                tuple(
                    SpokenSegment(float(each.start_time), float(each.end_time), each.transcript)
                    for each in results.audio_segments
                )
            )
        return Transcript(tuple(_sentences(results.items)))
    except (msgspec.DecodeError, ValueError, IndexError, RecursionError) as error:
        raise ExtractionFailed(f"the result of Transcribe cannot be read: {error}") from error


def _sentences(items: list[_Item]) -> Iterator[SpokenSegment]:
    """Join words to sentences. Punctuation has no times."""
    words: list[str] = []
    start = end = 0.0
    for item in items:
        content = item.alternatives[0].content
        if item.type == "punctuation":
            if words:
                words[-1] += content
        else:
            if not words:
                start = float(item.start_time)
            end = float(item.end_time)
            words.append(content)
        if words and (words[-1].endswith(_SENTENCE_ENDS) or len(words) >= _WORDS_MAX):
            yield SpokenSegment(start, end, " ".join(words))
            words = []
    if words:
        yield SpokenSegment(start, end, " ".join(words))
