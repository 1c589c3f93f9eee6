"""A bucket of blobs: how objects are kept, how the bucket is made, and what can refuse it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError

from holdfast.clock import ManualClock, SystemIds
from holdfast.errors import (
    AccessDenied,
    BlobNotFound,
    CredentialsExpired,
    CredentialsMissing,
    EndpointUnreachable,
    HoldfastError,
    InvalidUrl,
    StoreNotFound,
    StoreUnavailable,
    StoreUnusable,
    Throttled,
)
from holdfast.storage import Delete, Key, Put, s3
from holdfast.storage import open as open_store
from holdfast.storage.blobs import PART_BYTES, BlobRef, Blobs
from holdfast.storage.bucket_owner import owner_key
from holdfast.storage.meter import Meter
from holdfast.storage.s3 import S3Blobs
from tests.servers.process import free_port

DATA = b"some bytes"
SHA256 = hashlib.sha256(DATA).hexdigest()
REF = BlobRef("a/b", SHA256, len(DATA))


@pytest.fixture(scope="module")
def client(moto_server: str) -> Iterator[Any]:
    with closing(boto3.client("s3", endpoint_url=moto_server)) as client:
        yield client


@pytest.fixture
def bucket() -> str:
    return f"blobs-{SystemIds().new()}"


@pytest.fixture
async def blobs(moto_server: str, bucket: str) -> AsyncIterator[Blobs]:
    """Blobs in a bucket that is still to be made."""
    blobs = Blobs(S3Blobs(bucket, endpoint=moto_server, attempts_max=1), Meter())
    async with asyncio.timeout(60):
        yield blobs
    await blobs.close()


def calls_of(blobs: Blobs) -> list[Callable[[], Any]]:
    """Everything that can be asked of blobs, each once."""
    return [
        lambda: blobs.put(DATA, key="a/b"),
        lambda: blobs.put(DATA, prefix="a/"),
        lambda: blobs.get(REF),
        lambda: blobs.delete("a/b"),
        lambda: blobs.delete_all("a/"),
        lambda: blobs.list(),
    ]


# --- objects -------------------------------------------------------------------------------------


async def test_an_object_carries_its_hash_and_is_encrypted(
    blobs: Blobs, bucket: str, client: Any
) -> None:
    await blobs.create()
    large = bytes(PART_BYTES + 1)
    for data in (DATA, bytes(PART_BYTES), large):
        ref = await blobs.put(data, key="a")
        head = client.head_object(Bucket=bucket, Key="a")
        assert head["Metadata"] == {"sha256": ref.sha256}
        assert head["ServerSideEncryption"] == "AES256"
        assert head["ETag"].strip('"').partition("-")[2] == ("2" if data is large else "")


async def test_an_object_may_be_encrypted_with_a_key_of_kms(
    moto_server: str, bucket: str, client: Any
) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    blobs = Blobs(S3Blobs(bucket, endpoint=moto_server, kms_key=key), Meter())
    await blobs.create()
    for data in (DATA, bytes(PART_BYTES + 1)):
        await blobs.put(data, key="a")
        head = client.head_object(Bucket=bucket, Key="a")
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", key)
    await blobs.close()
    (rule,) = encryption_of(client, bucket)
    assert rule["ApplyServerSideEncryptionByDefault"] == {
        "SSEAlgorithm": "aws:kms",
        "KMSMasterKeyID": key,
    }
    assert rule["BucketKeyEnabled"] is True


async def test_encryption_may_be_left_to_the_service(
    moto_server: str, bucket: str, client: Any
) -> None:
    blobs = Blobs(S3Blobs(bucket, endpoint=moto_server, encryption=False), Meter())
    client.create_bucket(Bucket=bucket)
    await blobs.put(DATA, key="a")
    await blobs.close()
    assert "ServerSideEncryption" not in client.head_object(Bucket=bucket, Key="a")


@pytest.mark.parametrize(
    ("standing", "said"),
    [(DATA[::-1], hashlib.sha256(DATA[::-1]).hexdigest()), (DATA[1:], SHA256), (DATA[::-1], None)],
    ids=["other hash", "other size", "no hash"],
)
async def test_what_may_be_something_else_is_written_again(
    blobs: Blobs, bucket: str, client: Any, standing: bytes, said: str | None
) -> None:
    await blobs.create()
    metadata = {"sha256": said} if said else {}
    client.put_object(Bucket=bucket, Key=SHA256, Body=standing, Metadata=metadata)
    assert await blobs.get(await blobs.put(DATA)) == DATA


async def test_a_prefix_is_freed_page_after_page(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await blobs.create()
    for number in range(7):
        await blobs.put(DATA, key=f"a/{number}")
    monkeypatch.setattr(s3, "LIST_LIMIT_MAX", 2)
    assert await blobs.delete_all("a/") == 7
    assert (await blobs.list()).entries == []


# --- the bucket ----------------------------------------------------------------------------------


def encryption_of(client: Any, bucket: str) -> Any:
    answer = client.get_bucket_encryption(Bucket=bucket)
    return answer["ServerSideEncryptionConfiguration"]["Rules"]


async def test_a_new_bucket_is_encrypted_and_closed_to_the_public(
    blobs: Blobs, bucket: str, client: Any
) -> None:
    await blobs.create()
    (rule,) = encryption_of(client, bucket)
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    block = client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert block == {
        "BlockPublicAcls": True,
        "IgnorePublicAcls": True,
        "BlockPublicPolicy": True,
        "RestrictPublicBuckets": True,
    }


async def test_a_bucket_that_is_there_is_left_as_it_is(
    blobs: Blobs, bucket: str, client: Any
) -> None:
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="a", Body=DATA)
    await blobs.create()
    await blobs.create()
    with pytest.raises(client.exceptions.ClientError, match="PublicAccessBlock"):
        client.get_public_access_block(Bucket=bucket)
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == DATA


class Crash(BaseException):
    """The process dies."""


async def test_a_call_that_is_cut_short_is_finished_by_another(
    moto_server: str, client: Any
) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    steps = 0
    for step in range(1, 20):
        name = f"cut-{SystemIds().new()}"
        engine = S3Blobs(name, endpoint=moto_server, kms_key=key, attempts_max=1)
        sent = 0

        def die(request: Any, **_: Any) -> None:
            nonlocal sent
            sent += 1
            if sent == step:  # noqa: B023
                raise Crash

        engine._connect().meta.events.register("before-send.s3", die)
        try:
            engine.create()
            break
        except Crash:
            steps += 1
        finally:
            engine.close()
        again = S3Blobs(name, endpoint=moto_server, kms_key=key)
        again.create()
        again.close()
        block = client.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
        assert set(block.values()) == {True}
        (rule,) = encryption_of(client, name)
        assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == key
    assert steps == 6


async def test_the_table_comes_last(
    moto_server: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (
        f"dynamodb://{bucket}?region=us-east-1&endpoint={moto_server}"
        f"&bucket={bucket}&bucket_endpoint={moto_server}"
    )
    with monkeypatch.context() as patch:
        patch.setattr(S3Blobs, "_configure_bucket", cut_short)
        async with open_store(url) as store:
            with pytest.raises(StoreUnavailable, match="cut short"):
                await store.create()
            with pytest.raises(StoreNotFound):
                await store.table.get(Key("p", "s"))
    async with open_store(url) as store:
        await store.create()
        assert await store.table.get(Key("p", "s")) is None


def cut_short(self: S3Blobs, client: Any) -> None:
    raise StoreUnavailable("cut short")


async def test_every_request_says_whose_the_bucket_must_be(moto_server: str, bucket: str) -> None:
    engine = S3Blobs(bucket, endpoint=moto_server, owner="123456789012")
    asked: dict[str, bytes | None] = {}

    def look(request: Any, operation_name: str, **_: Any) -> None:
        asked[operation_name] = request.headers.get("x-amz-expected-bucket-owner")

    engine._connect().meta.events.register("before-sign.s3", look)
    blobs = Blobs(engine, Meter())
    await blobs.create()
    for call in calls_of(blobs):
        await call()
    await blobs.put(bytes(PART_BYTES + 1), key="large")
    await blobs.delete_all("a/")
    await blobs.close()
    assert asked.pop("CreateBucket") is None
    assert {"PutObject", "GetObject", "HeadObject", "UploadPart", "ListObjectsV2"} <= asked.keys()
    assert set(asked.values()) == {"123456789012"}


@pytest.fixture
def account(moto_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An account of AWS, whose services are found as every tool of AWS finds them."""
    for service in ("S3", "STS", "DYNAMODB"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", moto_server)
    return "123456789012"


def owners(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Return whose bucket each kind of request demands, as they come."""
    asked: dict[str, str | None] = {}
    connected = S3Blobs._connect

    def look(request: Any, operation_name: str, **_: Any) -> None:
        asked[operation_name] = request.headers.get("x-amz-expected-bucket-owner")

    def watched(self: S3Blobs) -> Any:
        client = connected(self)
        client.meta.events.register("before-sign.s3", look, unique_id="look")
        return client

    monkeypatch.setattr(S3Blobs, "_connect", watched)
    return asked


async def test_who_opens_a_store_that_was_made_demands_the_bucket_of_its_maker(
    bucket: str, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"dynamodb://{bucket}?region=us-east-1&bucket={bucket}"
    asked = owners(monkeypatch)
    async with open_store(url) as store:
        await store.create()
        assert asked.pop("CreateBucket") is None
        assert set(asked.values()) == {account}
    asked.clear()
    async with open_store(url) as store:
        for call in calls_of(store.blobs):
            await call()
        assert (
            store.meter.report().by_purpose()["settings"].reads == 0.5
        )  # asked once, not for each
    assert set(asked.values()) == {account}
    # The bucket was deleted, and another account has made it anew.
    async with open_store(url) as store:
        await store.table.write(
            Put({"PK": f"BUCKET#{bucket}", "SK": "OWNER", "owner": "999999999999"})
        )
        await store.blobs.put(DATA, key="c")
        assert asked["PutObject"] == "999999999999"
    async with open_store(url) as store:
        await store.create()  # asks for what was written down, and not for what we are
        assert asked["ListObjectsV2"] == "999999999999"
    async with open_store(f"{url}&bucket_owner={account}") as store:
        await store.blobs.put(DATA, key="d")  # what the address says counts
        assert asked["PutObject"] == account


async def test_a_store_that_was_made_before_demands_nothing_until_it_is_made_again(
    bucket: str, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"dynamodb://{bucket}?region=us-east-1&bucket={bucket}"
    async with open_store(url) as store:
        await store.create()
        await store.table.write(Delete(owner_key(bucket)))
    asked = owners(monkeypatch)
    async with open_store(url) as store:
        await store.blobs.put(DATA, key="a")
    assert asked == {"PutObject": None}
    async with open_store(url) as store:
        await store.create()
    async with open_store(url) as store:
        await store.blobs.put(DATA, key="a")
    assert asked["PutObject"] == account


async def test_where_nobody_knows_the_account_the_bucket_is_made_all_the_same(
    bucket: str,
    account: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service.will_say((400, b"<Error/>", 8))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.endpoint)
    engine = S3Blobs(bucket, region="us-east-1")
    engine.create()
    engine.close()
    assert engine.owner is None
    assert "bucket_owner=" in caplog.text


async def test_a_bucket_of_another_account_is_told(service: Service) -> None:
    service.will_say((403, b"<Error><Code>AccessDenied</Code></Error>", 40))
    engine = S3Blobs("blobs", endpoint=service.endpoint, owner="123456789012", attempts_max=1)
    with pytest.raises(AccessDenied, match="a bucket of the account 123456789012"):
        engine.create()
    engine.close()


@pytest.mark.parametrize("owner", ["", "me", "12345678901", "1234567890123", "12345678901\u0662"])
def test_an_owner_that_cannot_be_one(owner: str) -> None:
    with pytest.raises(InvalidUrl, match="12 digits"):
        S3Blobs("blobs", owner=owner)


async def test_a_bucket_is_made_in_its_region(moto_server: str, bucket: str, client: Any) -> None:
    blobs = Blobs(S3Blobs(bucket, endpoint=moto_server, region="eu-west-1"), Meter())
    await blobs.create()
    await blobs.close()
    assert client.get_bucket_location(Bucket=bucket)["LocationConstraint"] == "eu-west-1"


async def test_a_missing_bucket_is_named(blobs: Blobs, bucket: str) -> None:
    for call in calls_of(blobs):
        with pytest.raises(StoreNotFound, match=f"'{bucket}'.*holdfast store create"):
            await call()


@pytest.mark.parametrize("name", ["", "ab", "Upper", "under_score", "a/b", "-ab", "x" * 64, "a b"])
def test_a_name_that_no_bucket_can_have(name: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        S3Blobs(name)
    assert caught.value.field == "bucket"


@pytest.mark.parametrize(
    "endpoint",
    ["here", "localhost:9000", "ftp://a", "http://", "http://a:x", "http://a..b", "http://u@a"],
)
def test_an_endpoint_that_cannot_be_one(endpoint: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        S3Blobs("blobs", endpoint=endpoint)
    assert caught.value.field == "endpoint"


# --- credentials ---------------------------------------------------------------------------------


async def test_missing_credentials_are_told(
    blobs: Blobs, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for call in calls_of(blobs):
        with pytest.raises(CredentialsMissing, match="Unable to locate credentials"):
            await call()


async def test_the_region_is_that_of_the_table(
    moto_server: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Botocore itself knows only AWS_DEFAULT_REGION: a bucket would be made elsewhere."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    name = f"{bucket}-regional"
    blobs = Blobs(S3Blobs(name, endpoint=moto_server), Meter())
    await blobs.create()
    await blobs.close()
    with closing(boto3.client("s3", endpoint_url=moto_server, region_name="us-east-1")) as client:
        assert client.get_bucket_location(Bucket=name)["LocationConstraint"] == "eu-west-1"


async def test_a_chain_that_breaks_is_told(
    moto_server: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    config = tmp_path / "config"
    config.write_text("[default]\ncredential_process = /there/is/no/such/program\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    blobs = Blobs(S3Blobs(bucket, endpoint=moto_server), Meter())
    with pytest.raises(AccessDenied, match="could not get AWS credentials"):
        await blobs.list()
    await blobs.close()


async def test_a_missing_profile_is_told(moto_server: str, bucket: str) -> None:
    blobs = Blobs(S3Blobs(bucket, endpoint=moto_server, profile="nobody"), Meter())
    with pytest.raises(CredentialsMissing, match="nobody"):
        await blobs.list()
    await blobs.close()


class Drip:
    """A body that sends one byte at a time, ten seconds apart."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent = 0

    def read(self, size: int) -> bytes:
        self.clock.advance(10)
        self.sent += 1
        return b"x"


def test_a_drip_is_no_answer() -> None:
    clock = ManualClock()
    drip = Drip(clock)
    with pytest.raises(ReadTimeoutError):
        S3Blobs("blobs", clock=clock)._read_body(drip, 100)
    assert drip.sent == 3


# --- a service that does not do what it should ---------------------------------------------------


Answer = tuple[int, bytes, int]
"""A status, a body, and the length that is said of it."""


class Service:
    """Answers as it is told to, one after the other, and the last one for ever."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._answers: list[Answer] = []

    def will_say(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked.clear()

    def methods(self) -> list[str]:
        return [method for method, _, _ in self.asked]

    def answer(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        self.asked.append((method, path, headers))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # boto3 waits for its "100 Continue"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body, length = service.answer(self.command, self.path, headers)
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.close_connection = len(body) < length

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # those of connections that boto3 keeps open
    service.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield service
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def served(service: Service) -> Iterator[Blobs]:
    """Blobs of which the service knows only what it is told to say, asked once."""
    blobs = Blobs(S3Blobs("blobs", endpoint=service.endpoint, attempts_max=1), Meter())
    yield blobs
    asyncio.run(blobs.close())


def refusal(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>words of S3</Message></Error>".encode()
    return status, body, len(body)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", AccessDenied),
        (403, "InvalidAccessKeyId", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (403, "SomethingNew", AccessDenied),
        (400, "ExpiredToken", CredentialsExpired),
        (503, "SlowDown", Throttled),
        (503, "ServiceUnavailable", Throttled),
        (429, "TooManyRequests", Throttled),
        (500, "InternalError", StoreUnavailable),
        (400, "RequestTimeout", EndpointUnreachable),
        (404, "NoSuchBucket", StoreNotFound),
        (501, "NotImplemented", StoreUnusable),
        (400, "InvalidArgument", StoreUnusable),
    ],
)
async def test_a_refusal_has_its_type_and_its_words(
    service: Service, served: Blobs, status: int, code: str, error: type[HoldfastError]
) -> None:
    for call in calls_of(served):
        service.will_say(refusal(status, code))
        with pytest.raises(HoldfastError, match="'blobs'") as caught:
            await call()
        assert type(caught.value) is error
        # The answer to a HEAD has no body; what it alone decides is told by its status.
        if error is not StoreNotFound and service.methods() != ["HEAD"]:
            assert "words of S3" in str(caught.value)


async def test_a_bucket_is_not_made_where_the_service_refuses_to_look(
    service: Service, served: Blobs
) -> None:
    service.will_say(refusal(403, "AccessDenied"))
    with pytest.raises(AccessDenied):
        await served.create()
    assert service.methods() == ["GET"]
    service.will_say(refusal(404, "NoSuchBucket"), refusal(409, "BucketAlreadyExists"))
    with pytest.raises(AccessDenied, match="another account"):
        await served.create()
    # Another process made it at the same moment, and may die before it is set up.
    service.will_say(
        refusal(404, "NoSuchBucket"),
        refusal(409, "BucketAlreadyOwnedByYou"),
        refusal(404, "NoSuchPublicAccessBlockConfiguration"),
        (200, b"", 0),
        refusal(404, "ServerSideEncryptionConfigurationNotFoundError"),
        (200, b"", 0),
    )
    await served.create()
    assert service.methods() == ["GET", "PUT", "GET", "PUT", "GET", "PUT"]


async def test_an_endpoint_where_nobody_listens() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    blobs = Blobs(S3Blobs("blobs", endpoint=endpoint, attempts_max=1), Meter())
    for call in calls_of(blobs):
        with pytest.raises(EndpointUnreachable, match="'blobs'"):
            await call()
    await blobs.close()


async def test_what_fails_for_a_moment_is_asked_for_again(service: Service) -> None:
    blobs = Blobs(S3Blobs("blobs", endpoint=service.endpoint, attempts_max=3), Meter())
    broken_off = (200, DATA[:4], len(DATA))
    service.will_say(broken_off, (200, b"", len(DATA)), (200, DATA, len(DATA)))
    assert await blobs.get(REF) == DATA
    service.will_say(refusal(503, "SlowDown"), (200, DATA, len(DATA)))
    assert await blobs.get(REF) == DATA
    service.will_say(broken_off)
    with pytest.raises(EndpointUnreachable):
        await blobs.get(REF)
    assert service.methods() == ["GET"] * 3
    await blobs.close()


@pytest.mark.parametrize("status", [403, 400])
async def test_who_may_write_but_not_look_can_put(
    service: Service, served: Blobs, status: int
) -> None:
    # On a 400 boto3 asks a second time, since it may have come to the wrong region.
    service.will_say(*[(status, b"", 0)] * (1 if status == 403 else 2), (200, b"", 0))
    assert await served.put(DATA) == BlobRef(SHA256, SHA256, len(DATA))
    assert service.methods()[-1] == "PUT"


async def test_a_put_sends_the_hash_for_s3_to_check(service: Service, served: Blobs) -> None:
    service.will_say((200, b"", 0))
    await served.put(DATA, key="a/b c")
    ((method, path, headers),) = service.asked
    assert (method, path) == ("PUT", "/blobs/a/b%20c")
    assert base64.b64decode(headers["x-amz-checksum-sha256"]).hex() == SHA256
    assert headers["x-amz-server-side-encryption"] == "AES256"


async def test_a_host_with_a_name_is_addressed_by_paths_as_well(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not even localhost has an address on every machine.
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *rest, **more: resolve("127.0.0.1", *rest, **more)
    )
    endpoint = service.endpoint.replace("127.0.0.1", "named.invalid")
    blobs = Blobs(S3Blobs("blobs", endpoint=endpoint, kms_key="my-key", attempts_max=1), Meter())
    service.will_say((200, b"", 0))
    await blobs.put(DATA, key="a")
    ((_, path, headers),) = service.asked
    assert path == "/blobs/a"
    assert headers["host"].startswith("named.invalid:")
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "my-key"
    await blobs.close()


async def test_a_key_that_cannot_be_deleted_is_told(service: Service, served: Blobs) -> None:
    listed = b"""<ListBucketResult><IsTruncated>false</IsTruncated>
        <Contents><Key>a/b</Key><Size>1</Size></Contents></ListBucketResult>"""
    failed = b"""<DeleteResult><Error><Key>a/b</Key><Code>AccessDenied</Code>
        <Message>words of S3</Message></Error></DeleteResult>"""
    service.will_say((200, listed, len(listed)), (200, failed, len(failed)))
    with pytest.raises(AccessDenied, match="words of S3"):
        await served.delete_all("a/")


async def test_a_missing_key_is_not_a_missing_bucket(service: Service, served: Blobs) -> None:
    service.will_say(refusal(404, "NoSuchKey"))
    with pytest.raises(BlobNotFound):
        await served.get(REF)
