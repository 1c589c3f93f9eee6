"""Where credentials, regions and endpoints come from, and what happens when they are no good.

Only the usual access key reaches DynamoDB Local: it keeps a database for each, all of which draw
the numbers of their streams' records from one source, and fails when two of them meet.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    CredentialsMissing,
    InvalidUrl,
    OutcomeUnknown,
)
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.dynamodb.credentials import CredentialChain
from holdfast.storage.layout import Key
from holdfast.storage.operations import GetItem, WriteItem
from holdfast.storage.writes import Absent, Put
from tests.dynamodb.conftest import LeapingClock, Open
from tests.servers.stub_dynamodb import Asked, Said, Stub, answer, fault, forward, lose, say

GET = GetItem(Key("p", "s"), eventual=False)
EXPIRED = fault("ExpiredTokenException", "The security token included in the request is expired")


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")


# --- where they come from ------------------------------------------------------------------------


@pytest.mark.usefixtures("no_keys")
async def test_without_credentials_the_error_says_where_it_looked(
    open_engine: Open, stub: Stub, clock: LeapingClock
) -> None:
    with pytest.raises(CredentialsMissing, match=r"AWS_ACCESS_KEY_ID.*default profile.*SSO"):
        await open_engine().perform(GET)
    assert stub.asked == []
    assert clock.slept == []


@pytest.mark.usefixtures("no_keys")
async def test_credentials_of_a_profile(
    open_engine: Open, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[work]\naws_access_key_id = WORK\naws_secret_access_key = x\naws_session_token = session\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    stub.always("GetItem", say(answer()))
    await open_engine(profile="work").perform(GET)
    assert {asked.access_key for asked in stub.asked} == {"WORK"}
    assert {asked.headers["x-amz-security-token"] for asked in stub.asked} == {"session"}


async def test_a_profile_that_does_not_exist(open_engine: Open) -> None:
    with pytest.raises(CredentialsMissing, match="nobody"):
        await open_engine(profile="nobody").perform(GET)


@pytest.mark.usefixtures("no_region")
async def test_without_a_region_the_error_says_where_to_name_it(open_engine: Open) -> None:
    with pytest.raises(InvalidUrl, match="AWS_REGION"):
        await open_engine(region=None).perform(GET)
    with pytest.raises(InvalidUrl, match="AWS_REGION"):
        await CredentialChain(profile=None, region=None, endpoint=None).place()


@pytest.mark.usefixtures("no_region")
@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
async def test_a_region_from_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "cn-north-1")
    place = await CredentialChain(profile=None, region=None, endpoint=None).place()
    assert place.region == "cn-north-1"
    assert place.endpoint == "https://dynamodb.cn-north-1.amazonaws.com.cn"
    place = await CredentialChain(profile=None, region=None, endpoint="http://x").place()
    assert (place.region, place.endpoint) == ("cn-north-1", "http://x")


async def test_an_endpoint_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:9")
    place = await CredentialChain(profile=None, region="eu-west-1", endpoint=None).place()
    assert place.endpoint == "http://127.0.0.1:9"


# --- when they are no good -----------------------------------------------------------------------


async def test_expired_credentials_are_looked_for_anew(
    open_engine: Open, other: DynamoEngine, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()

    async def expire(stub: Stub, asked: Asked) -> Said | None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "fresh")
        return EXPIRED

    stub.plan("GetItem", forward, expire)
    await engine.perform(GET)
    await engine.perform(GET)
    first, second, third = (asked.headers["authorization"] for asked in stub.asked)
    assert first == second
    assert first != third  # the clock stands still: only the secret can have changed it


async def test_credentials_that_stay_expired(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    stub.always("GetItem", say(EXPIRED))
    with pytest.raises(CredentialsExpired, match="security token"):
        await engine.perform(GET)
    assert len(stub.asked) == 2
    assert clock.slept == []


async def test_credentials_that_expire_after_a_lost_answer(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.plan("PutItem", lose)
    stub.always("PutItem", say(EXPIRED))
    put = Put({"PK": "p", "SK": "s"}, Absent("PK"))
    result = await engine.perform(WriteItem(put, "nothing"))
    assert isinstance(result.error, OutcomeUnknown)
    assert isinstance(result.error.__cause__, CredentialsExpired)


async def test_refused_credentials(engine: DynamoEngine, stub: Stub) -> None:
    message = "The security token included in the request is invalid."
    stub.always("GetItem", say(fault("UnrecognizedClientException", message)))
    with pytest.raises(AccessDenied, match=f"UnrecognizedClientException: {message}"):
        await engine.perform(GET)


@pytest.mark.usefixtures("no_keys")
async def test_credentials_that_can_be_renewed_are_renewed_before_they_expire(
    open_engine: Open, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = cat {keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    stub.always("GetItem", say(answer()))
    engine = open_engine()

    def issue(name: str, minutes: int) -> None:
        expires = datetime.fromtimestamp(SystemClock().now_ms() / 1000 + minutes * 60, UTC)
        keys.write_text(
            json.dumps(
                {
                    "Version": 1,
                    "AccessKeyId": name,
                    "SecretAccessKey": "x",
                    "SessionToken": "session",
                    "Expiration": expires.isoformat(),
                }
            )
        )

    # Botocore renews what expires within ten minutes.
    for name, minutes in [("FIRST", 5), ("SECOND", 60), ("THIRD", 60)]:
        issue(name, minutes)
        await engine.perform(GET)
    assert [asked.access_key for asked in stub.asked] == ["FIRST", "SECOND", "SECOND"]
    # Until then they are at hand, and botocore is not asked.
    chain = CredentialChain(profile=None, region="us-east-1", endpoint=stub.endpoint)
    assert await chain.keys() is await chain.keys()


@pytest.mark.usefixtures("no_keys")
async def test_a_process_that_fails_is_told(
    open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ncredential_process = sh -c 'echo no luck >&2; exit 1'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(AccessDenied, match="no luck"):
        await open_engine().perform(GET)
