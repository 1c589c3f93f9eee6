"""`S3Blobs`: blobs as objects in one bucket of S3, or of a compatible service.

boto3 blocks and uses much CPU, but it provides the credential chain, retries, checksums and uploads
in parts, and blobs are few and large. So it runs in a few threads.
"""

# boto3 has no types. Its responses are Any in this module, and become typed values at its edge.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import base64
import io
import re
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from typing import Any

from boto3.s3.transfer import TransferConfig
from boto3.session import Session
from botocore import exceptions as aws
from botocore.config import Config

from holdfast.clock import Clock, SystemClock
from holdfast.display import get_logger
from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    EndpointUnreachable,
    HoldfastError,
    InvalidBlobKey,
    InvalidUrl,
    StoreNotFound,
    StoreUnavailable,
    StoreUnusable,
    Throttled,
)
from holdfast.storage.aws import (
    CHAIN_ERRORS,
    configured_region,
    credentials_error,
    credentials_unavailable,
    validate_endpoint,
)
from holdfast.storage.blobs import (
    LIST_LIMIT_MAX,
    PART_BYTES,
    BlobContent,
    BlobEntry,
    BlobPage,
    validate_blob_key,
)

__all__ = ["S3Blobs"]

_log = get_logger("holdfast.storage")

THREADS = 8
PARTS_IN_FLIGHT_MAX = 4
ATTEMPTS_MAX = 5
CONNECT_SECONDS = 5
READ_SECONDS = 20
BYTES_PER_SECOND_MIN = 256 * 1024
"""A slower download is given up, `READ_SECONDS` after it should have ended."""
_CHUNK_BYTES = 1024 * 1024

_ACCOUNT_LOOKUP = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2})
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# To create a bucket in one of these, the request must not name a region.
_DEFAULT_REGIONS = (None, "us-east-1", "aws-global")

_PUBLIC_ACCESS_BLOCKS = (
    "BlockPublicAcls",
    "IgnorePublicAcls",
    "BlockPublicPolicy",
    "RestrictPublicBuckets",
)
_NO_BLOCK = "NoSuchPublicAccessBlockConfiguration"
_NO_ENCRYPTION = "ServerSideEncryptionConfigurationNotFoundError"

_DENIED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_THROTTLED = ("SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException")

_INTERRUPTED = (aws.IncompleteReadError, aws.ReadTimeoutError, aws.ResponseStreamingError)
_UNREACHABLE = (aws.ConnectionError, aws.HTTPClientError, aws.IncompleteReadError)
_MULTIPART = TransferConfig(
    multipart_threshold=PART_BYTES,
    multipart_chunksize=PART_BYTES,
    max_concurrency=PARTS_IN_FLIGHT_MAX,
)


class S3Blobs:
    """Blobs in a bucket, which S3 encrypts with its own keys or with a KMS key.

    With ``encryption=False`` requests do not mention encryption, for a service that has none or a
    bucket that encrypts by default. Requests to an ``endpoint`` have the bucket in the path, not in
    the host name. With an ``owner``, the number of an account, S3 refuses every request if another
    account owns the bucket. `create` on S3 sets it to the account that creates the bucket.
    """

    def __init__(
        self,
        bucket: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        profile: str | None = None,
        kms_key: str | None = None,
        owner: str | None = None,
        encryption: bool = True,
        attempts_max: int = ATTEMPTS_MAX,
        clock: Clock | None = None,
    ) -> None:
        """Set up access to the bucket, without sending anything.

        Raises:
            InvalidUrl: the name, the account's number or the endpoint is not valid.
        """
        if owner is not None and _ACCOUNT.fullmatch(owner) is None:
            raise InvalidUrl(
                f"bucket_owner must be the 12 digits of an AWS account, got {owner!r:.80}",
                field="bucket_owner",
            )
        self.owner = owner
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise InvalidUrl(
                f"bucket must be a valid name of an S3 bucket, got {bucket!r:.80}", field="bucket"
            )
        self.bucket = bucket
        self._region = configured_region(region) if region else None
        self._endpoint = endpoint and validate_endpoint(endpoint)
        self._profile = profile
        self._algorithm = ("aws:kms" if kms_key else "AES256") if encryption else None
        self._kms_key = kms_key
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self.name = f"bucket {bucket}"
        self.threads = THREADS
        self._client_lock = threading.Lock()
        self._client: Any = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def write(self, key: str, data: bytes, sha256: str) -> None:
        arguments = self._object_arguments(sha256)
        with self._use_client() as client:
            if len(data) > PART_BYTES:
                body = io.BytesIO(data)
                client.upload_fileobj(
                    body, self.bucket, key, ExtraArgs=arguments, Config=_MULTIPART
                )
            else:
                # S3 refuses bytes that do not have this hash.
                checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
                client.put_object(
                    Bucket=self.bucket, Key=key, Body=data, ChecksumSHA256=checksum, **arguments
                )

    def confirm_stored(self, key: str, size: int, sha256: str) -> bool:
        with self._use_client() as client:
            try:
                head = client.head_object(Bucket=self.bucket, Key=key)
            except aws.ClientError as error:
                # The response to a HEAD does not say why. The write that follows will.
                if _status(error) in (400, 403, 404):
                    return False
                raise
        return head["ContentLength"] == size and head["Metadata"].get("sha256") == sha256

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        attempt = 1
        with self._use_client() as client:
            while True:
                try:
                    response = client.get_object(Bucket=self.bucket, Key=key)
                except client.exceptions.NoSuchKey:
                    return None
                size = response["ContentLength"]
                with closing(response["Body"]) as body:
                    if size > bytes_max:
                        return BlobContent(size, None)
                    try:
                        return BlobContent(size, self._read_body(body, size))
                    except _INTERRUPTED:  # boto3 retries only until the response begins
                        if attempt >= self._attempts_max:
                            raise
                attempt += 1

    def _read_body(self, body: Any, size: int) -> bytes:
        """Read a response, and give up on one that arrives too slowly."""
        deadline = self._clock.monotonic() + READ_SECONDS + size / BYTES_PER_SECOND_MIN
        chunks: list[bytes] = []
        while chunk := body.read(_CHUNK_BYTES):
            chunks.append(chunk)
            if self._clock.monotonic() > deadline:
                raise aws.ReadTimeoutError(endpoint_url=f"s3://{self.bucket}")
        return b"".join(chunks)

    def delete(self, key: str) -> None:
        with self._use_client() as client:
            client.delete_object(Bucket=self.bucket, Key=key)

    def delete_all(self, prefix: str) -> int:
        deleted = 0
        after: str | None = None
        while True:
            page = self.list_page(prefix, after, LIST_LIMIT_MAX)
            if page.entries:
                self._delete_entries(page.entries)
                deleted += len(page.entries)
            if page.cursor is None:
                return deleted
            after = page.cursor

    def _delete_entries(self, entries: list[BlobEntry]) -> None:
        objects = [{"Key": entry.key} for entry in entries]
        with self._use_client() as client:
            response = client.delete_objects(
                Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}
            )
            for failed in response.get("Errors", []):
                # The response is a success even if S3 refused to delete some keys.
                raise aws.ClientError({"Error": failed}, "DeleteObjects")

    def list_page(self, prefix: str, after: str | None, limit: int) -> BlobPage:
        start = {} if after is None else {"StartAfter": after}
        with self._use_client() as client:
            response = client.list_objects_v2(
                Bucket=self.bucket, Prefix=prefix, MaxKeys=limit, **start
            )
        found = response.get("Contents", [])
        entries = [BlobEntry(each["Key"], each["Size"]) for each in found if _is_ours(each["Key"])]
        return BlobPage(entries, found[-1]["Key"] if response["IsTruncated"] else None)

    def remove_leftovers(self, before_ms: int) -> int:
        return 0

    def probe_exact_keys(self) -> bool:
        return True

    def create(self) -> None:
        """Create the bucket, encrypted and closed to the public; leave one with blobs alone.

        An interrupted call may have created an empty bucket, which gets its missing settings now.
        """
        if self.owner is None and self._endpoint is None:
            self.owner = self._fetch_account()
        with self._use_client() as client:
            try:
                # Not HeadBucket, because its errors do not say why.
                found = client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)
            except client.exceptions.NoSuchBucket:
                self._create_bucket(client)
            else:
                if found.get("Contents"):
                    return
            self._configure_bucket(client)

    def _fetch_account(self) -> str | None:
        """Return the account of the credentials; None if the service cannot tell."""
        try:
            with closing(self._create_session().client("sts", config=_ACCOUNT_LOOKUP)) as client:
                account = client.get_caller_identity()["Account"]
            return account if _ACCOUNT.fullmatch(account) else None
        except CHAIN_ERRORS as error:
            known = credentials_error(error)
            if known is not None:
                raise known from error
            # A compatible service may have no accounts, and a closed network no access to STS.
            _log.warning(
                "requests cannot name the account that must own bucket %r, because looking up our "
                "account failed (%s); add bucket_owner= to the address",
                self.bucket,
                error,
            )
            return None

    def _create_bucket(self, client: Any) -> None:
        region = client.meta.region_name
        where = (
            {}
            if region in _DEFAULT_REGIONS
            else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        )
        # Another process may have created it at the same moment.
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=self.bucket, **where)

    def _configure_bucket(self, client: Any) -> None:
        """Set the settings that the bucket does not have yet."""
        if self._get_setting(client.get_public_access_block, _NO_BLOCK) is None:
            client.put_public_access_block(
                Bucket=self.bucket,
                PublicAccessBlockConfiguration=dict.fromkeys(_PUBLIC_ACCESS_BLOCKS, True),
            )
        if self._algorithm and not self._is_encrypted(client):
            default = {"SSEAlgorithm": self._algorithm}
            if self._kms_key:
                default["KMSMasterKeyID"] = self._kms_key
            rule = {
                "ApplyServerSideEncryptionByDefault": default,
                # S3 then does not call KMS for every object.
                "BucketKeyEnabled": self._kms_key is not None,
            }
            client.put_bucket_encryption(
                Bucket=self.bucket, ServerSideEncryptionConfiguration={"Rules": [rule]}
            )

    def _is_encrypted(self, client: Any) -> bool:
        """Return whether the bucket encrypts by default, with a KMS key if one is configured.

        S3 encrypts every new bucket with its own keys.
        """
        response = self._get_setting(client.get_bucket_encryption, _NO_ENCRYPTION)
        rules = [] if response is None else response["ServerSideEncryptionConfiguration"]["Rules"]
        found = [rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in rules]
        return any(self._kms_key is None or "KMSMasterKeyID" in each for each in found)

    def _get_setting(self, get: Any, missing: str) -> Any:
        try:
            return get(Bucket=self.bucket)
        except aws.ClientError as error:
            if error.response["Error"].get("Code") != missing:
                raise
            return None

    def _add_expected_owner(self, params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        """Add the expected owner to a request; only CreateBucket has no such parameter."""
        if self.owner is not None and "ExpectedBucketOwner" in model.input_shape.members:
            return {**params, "ExpectedBucketOwner": self.owner}
        return params

    def _object_arguments(self, sha256: str) -> dict[str, Any]:
        """Return the arguments for the upload of every object."""
        arguments: dict[str, Any] = {"Metadata": {"sha256": sha256}}
        if self._algorithm:
            arguments["ServerSideEncryption"] = self._algorithm
        if self._algorithm and self._kms_key:
            arguments["SSEKMSKeyId"] = self._kms_key
        return arguments

    @contextmanager
    def _use_client(self) -> Generator[Any]:
        """Yield the client, and raise its errors as errors of Holdfast."""
        try:
            client = self._connect()
        except CHAIN_ERRORS as error:
            raise credentials_error(error) or credentials_unavailable(error) from error
        try:
            yield client
        except (aws.ClientError, aws.BotoCoreError) as error:
            raise _store_error(error, self.bucket, self.owner) from error

    def _create_session(self) -> Session:
        region = configured_region(self._region)
        return Session(profile_name=self._profile, region_name=region)

    def _connect(self) -> Any:
        with self._client_lock:
            if self._client is None:
                self._client = self._create_session().client(
                    "s3",
                    endpoint_url=self._endpoint,
                    config=Config(
                        connect_timeout=CONNECT_SECONDS,
                        read_timeout=READ_SECONDS,
                        retries={"mode": "standard", "total_max_attempts": self._attempts_max},
                        max_pool_connections=THREADS * PARTS_IN_FLIGHT_MAX,
                        # `Blobs` checks the bytes against the hash in the reference.
                        response_checksum_validation="when_required",
                        s3={"addressing_style": "path"} if self._endpoint else None,
                        user_agent_extra="holdfast",
                    ),
                )
                # One hook for all requests, those for parts included.
                self._client.meta.events.register(
                    "provide-client-params.s3", self._add_expected_owner
                )
            return self._client


def _is_ours(key: str) -> bool:
    try:
        validate_blob_key(key)
    except InvalidBlobKey:
        return False
    return True


def _status(error: Any) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _store_error(error: Any, bucket: str, owner: str | None) -> HoldfastError:
    if isinstance(error, aws.ClientError):
        return _client_error(error, bucket, owner)
    what = f"bucket {bucket!r}: {error}"
    if isinstance(error, _UNREACHABLE):
        return EndpointUnreachable(f"no response from {what}")
    return credentials_error(error) or StoreUnusable(f"cannot use {what}")


def _client_error(error: Any, bucket: str, owner: str | None) -> HoldfastError:
    """Return the Holdfast error for an error of S3, with the message of S3 in it."""
    code, status = str(error.response["Error"].get("Code", "")), _status(error)
    what = f"bucket {bucket!r}: {error}"
    if code == "NoSuchBucket":
        return StoreNotFound(
            f"there is no bucket {bucket!r}; run holdfast store create, with this store's address"
        )
    if code == "BucketAlreadyExists":
        return AccessDenied(f"another account owns {what}")
    if code in _EXPIRED:
        return CredentialsExpired(f"the credentials have expired for {what}")
    if code in _DENIED or status in (401, 403):
        whose = "" if owner is None else f" (it must be a bucket of the account {owner})"
        return AccessDenied(f"no access to {what}{whose}")
    if code in _THROTTLED or status in (429, 503):
        return Throttled(f"too many requests for {what}")
    if code == "RequestTimeout":
        return EndpointUnreachable(f"no response from {what}")
    if code == "InternalError" or status in (500, 502, 504):
        return StoreUnavailable(f"S3 failed for {what}")
    return StoreUnusable(f"S3 refused a request for {what}")
