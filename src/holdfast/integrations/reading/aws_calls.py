"""Calls of AWS services that read documents: in threads, with errors that say whether to retry."""

# boto3 has no types: what comes from it is Any here.
from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn, TypeVar

from holdfast.clock import Clock
from holdfast.errors import (
    ExtractionFailed,
    ExtractionUnavailable,
    InvalidRequest,
    NotConfigured,
)

__all__ = ["AwsCalls", "S3Place", "job_name", "polled", "s3_place"]

T = TypeVar("T")

_THREADS_MAX = 8
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_POLL_SECONDS = 2.0
_POLL_SECONDS_MAX = 30.0
_BUSY = frozenset(
    {
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "InternalServerException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestTimeout",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_NOT_PERMITTED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_S3_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.DOTALL)


class S3Place(NamedTuple):
    """A bucket and a key, or the beginning of keys."""

    bucket: str
    key: str

    @property
    def uri(self) -> str:
        """The address of the place."""
        return f"s3://{self.bucket}/{self.key}"


def s3_place(uri: str, field: str) -> S3Place:
    """Return the place that an address names.

    Raises:
        InvalidRequest: it is not an address of S3.
    """
    found = _S3_URI.fullmatch(uri) if isinstance(uri, str) else None
    if found is None:
        raise InvalidRequest(
            f"{field} must be an address such as s3://bucket/key, got {uri!r:.200}", field=field
        )
    return S3Place(found[1], found[2] or "")


def job_name(key: str) -> str:
    """Return the name of the job of a call: the same for each attempt.

    Raises:
        InvalidRequest: the key is empty.
    """
    if not isinstance(key, str) or not key:
        raise InvalidRequest(
            "key must be the idempotency key of the call: a repeated call has to find its job",
            field="key",
        )
    return f"holdfast-{hashlib.sha256(key.encode()).hexdigest()[:48]}"


class AwsCalls:
    """Calls one AWS service in threads; its client is made when it is first needed."""

    def __init__(self, service: str, *, what: str, client: Any, region: str | None) -> None:
        self._service = service
        self._what = what
        self._client = client
        self._region = region
        if client is None and find_spec("boto3") is None:
            raise NotConfigured(f"{service} needs boto3: pip install 'holdfast[aws]'", what=what)
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix=f"holdfast-{service}")

    async def run(self, call: Callable[[Any], T]) -> T:
        """Call the function with the client.

        Raises:
            NotConfigured: there are no credentials, no region or no permission.
            ExtractionFailed: the service refused the request.
            ExtractionUnavailable: the service is too busy, or does not respond.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, call)

    def _run(self, call: Callable[[Any], T]) -> T:
        from botocore import exceptions

        try:
            if self._client is None:
                self._client = _make_client(self._service, self._region)
            return call(self._client)
        except exceptions.ClientError as error:
            self._raise(error)
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.NoRegionError,
            exceptions.ProfileNotFound,
        ) as error:
            raise NotConfigured(f"{self._service}: {error}", what=self._what) from error
        except exceptions.ParamValidationError as error:
            raise ExtractionFailed(f"{self._service}: {error}") from error
        except exceptions.BotoCoreError as error:
            raise ExtractionUnavailable(f"{self._service} does not respond: {error}") from error

    def _raise(self, error: Any) -> NoReturn:
        code = str(error.response.get("Error", {}).get("Code", ""))
        message = f"{self._service}: {str(error)[:500]}"
        if code in _BUSY:
            raise ExtractionUnavailable(message) from error
        if code in _NOT_PERMITTED:
            raise NotConfigured(message, what=self._what) from error
        raise ExtractionFailed(message) from error

    async def read_object(self, place: S3Place, *, bytes_max: int) -> bytes:
        """Return an object of S3, for calls of the service ``s3``."""

        def read(client: Any) -> bytes:
            body: Any = client.get_object(Bucket=place.bucket, Key=place.key)["Body"]
            try:
                return body.read(bytes_max + 1)
            finally:
                body.close()

        data = await self.run(read)
        if len(data) > bytes_max:
            raise ExtractionFailed(f"{place.uri} has more than {bytes_max:,} bytes")
        return data


def _make_client(service: str, region: str | None) -> Any:
    import boto3
    from botocore.config import Config

    from holdfast.storage.aws import configured_region

    session: Any = boto3
    return session.client(
        service,
        region_name=configured_region(region),
        config=Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            # The caller retries, and knows what was tried.
            retries={"total_max_attempts": 1, "mode": "standard"},
        ),
    )


async def polled(
    ask: Callable[[], Awaitable[T | None]], *, clock: Clock, seconds_max: float, what: str
) -> T:
    """Ask for the result of a job again and again, less and less often, until there is one.

    Raises:
        ExtractionUnavailable: it took longer than ``seconds_max``. The job goes on.
    """
    deadline = clock.monotonic() + seconds_max
    pause = _POLL_SECONDS
    while True:
        if (result := await ask()) is not None:
            return result
        if clock.monotonic() >= deadline:
            raise ExtractionUnavailable(f"{what} has not finished in {seconds_max:g} s")
        await clock.sleep(pause)
        pause = min(pause * 1.5, _POLL_SECONDS_MAX)
