"""`DataAutomation`: documents read by Amazon Bedrock Data Automation, or the error that none is."""

# boto3 has no types: what comes from it is Any here.
from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ExtractionFailed, NotConfigured
from holdfast.integrations.reading.aws_calls import AwsCalls, S3Place, job_name, polled, s3_place
from holdfast.model.durations import Duration, seconds_of

__all__ = [
    "AutomationPage",
    "AutomationResult",
    "BedrockDataAutomation",
    "DataAutomation",
    "UnconfiguredDataAutomation",
]

_METADATA_BYTES_MAX = 8 * 1024**2
_RESULT_BYTES_MAX = 256 * 1024**2
_DONE = ("Success", "ServiceError", "ClientError")


class AutomationPage(msgspec.Struct, frozen=True):
    """The text of one page, as Markdown where the service offers it."""

    index: int
    text: str


class AutomationResult(msgspec.Struct, frozen=True):
    """What data automation found in a document, and where its whole output is."""

    summary: str
    pages: tuple[AutomationPage, ...]
    output_uri: str


class DataAutomation(Protocol):
    """Reads documents with a service that understands them as a whole."""

    async def analyze(self, uri: str, *, key: str) -> AutomationResult:
        """Return what the service finds in the document at an address ``s3://…``.

        ``key`` is the idempotency key of the call: a repeated call finds the same job.

        Raises:
            NotConfigured: there is no such service here, or it lacks permissions.
            ExtractionFailed: the service cannot read this document.
            ExtractionUnavailable: the service does not respond, or is too busy; try again.
        """
        ...


class UnconfiguredDataAutomation:
    """Stands for data automation where none is set up: each call says what to do."""

    async def analyze(self, uri: str, *, key: str) -> AutomationResult:
        """Raise `NotConfigured`.

        Raises:
            NotConfigured: always.
        """
        raise NotConfigured(
            "data automation is not configured: pass one, such as "
            "BedrockDataAutomation(output='s3://bucket/prefix/', profile='arn:aws:bedrock:…')",
            what="data automation",
        )


class BedrockDataAutomation:
    """Reads documents with Amazon Bedrock Data Automation.

    ``output`` is where the service puts its results. ``profile`` is the ARN of a data automation
    profile, ``project`` that of a project with settings of your own. ``client`` and ``s3`` are
    clients of boto3, for ``bedrock-data-automation-runtime`` and for S3.
    """

    def __init__(
        self,
        *,
        output: str,
        profile: str,
        project: str | None = None,
        region: str | None = None,
        client: Any = None,
        s3: Any = None,
        timeout: Duration = 4 * 3600,
        clock: Clock | None = None,
    ) -> None:
        """Make an adapter. Nothing is sent before it is asked.

        Raises:
            InvalidRequest: the output is not an address of S3.
            NotConfigured: boto3 is not installed.
        """
        place = s3_place(output, "output")
        self._output = S3Place(place.bucket, place.key.strip("/") + "/" if place.key else "")
        self._profile = profile
        self._project = project
        self._timeout_seconds = seconds_of(timeout, "timeout")
        self._clock = clock or SystemClock()
        what = "data automation"
        self._calls = AwsCalls(
            "bedrock-data-automation-runtime", what=what, client=client, region=region
        )
        self._s3 = AwsCalls("s3", what=what, client=s3, region=region)

    async def analyze(self, uri: str, *, key: str) -> AutomationResult:
        """Start a job, or find the one that an earlier attempt started, and wait for its result."""
        name = job_name(key)
        request: dict[str, Any] = {
            # The same token again is the same job.
            "clientToken": name,
            "inputConfiguration": {"s3Uri": s3_place(uri, "uri").uri},
            "outputConfiguration": {"s3Uri": f"{self._output.uri}{name}"},
            "dataAutomationProfileArn": self._profile,
        }
        if self._project is not None:
            request["dataAutomationConfiguration"] = {"dataAutomationProjectArn": self._project}
        started: Any = await self._calls.run(
            lambda client: client.invoke_data_automation_async(**request)
        )
        arn = str(started["invocationArn"])

        async def ask() -> Any:
            status: Any = await self._calls.run(
                lambda client: client.get_data_automation_status(invocationArn=arn)
            )
            return status if status["status"] in _DONE else None

        status = await polled(
            ask, clock=self._clock, seconds_max=self._timeout_seconds, what=f"the job {name}"
        )
        if status["status"] != "Success":
            reason = str(status.get("errorMessage") or status.get("errorType") or status["status"])
            raise ExtractionFailed(f"data automation failed: {reason[:500]}")
        return await self._result(str(status["outputConfiguration"]["s3Uri"]))

    async def _result(self, output_uri: str) -> AutomationResult:
        """Read the metadata of a job, and the standard output of each of its segments."""
        metadata = await self._read(output_uri, _Metadata, _METADATA_BYTES_MAX)
        summaries: list[str] = []
        pages: list[AutomationPage] = []
        for asset in metadata.output_metadata:
            for segment in asset.segment_metadata:
                if segment.standard_output_path is None:
                    continue
                found = await self._read(
                    segment.standard_output_path, _StandardOutput, _RESULT_BYTES_MAX
                )
                summaries.append(found.document.summary or found.document.description)
                for page in found.pages:
                    text = page.representation.markdown or page.representation.text
                    pages.append(AutomationPage(page.page_index, text))
        summary = "\n\n".join(each for each in summaries if each)
        return AutomationResult(
            summary, tuple(sorted(pages, key=lambda page: page.index)), output_uri
        )

    async def _read(self, uri: str, type: type[Any], bytes_max: int) -> Any:
        data = await self._s3.read_object(s3_place(uri, "output"), bytes_max=bytes_max)
        try:
            return msgspec.json.decode(data, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ExtractionFailed(f"{uri} cannot be read: {error}") from error


class _Segment(msgspec.Struct):
    standard_output_path: str | None = None


class _Asset(msgspec.Struct):
    segment_metadata: list[_Segment] = []


class _Metadata(msgspec.Struct):
    output_metadata: list[_Asset] = []


class _Representation(msgspec.Struct):
    markdown: str = ""
    text: str = ""


class _Page(msgspec.Struct):
    page_index: int
    representation: _Representation = msgspec.field(default_factory=_Representation)


class _Whole(msgspec.Struct):
    summary: str = ""
    description: str = ""


class _StandardOutput(msgspec.Struct):
    document: _Whole = msgspec.field(default_factory=_Whole)
    pages: list[_Page] = []
