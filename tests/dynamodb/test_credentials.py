"""Where credentials, regions and endpoints come from, and what happens when they are no good.

Only the usual access key reaches DynamoDB Local: it keeps a database for each, all of which draw
the numbers of their streams' records from one source, and fails when two of them meet.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest

from holdfast.clock import Clock, ManualClock, SystemClock
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


def chain_of(
    region: str | None, endpoint: str | None, clock: Clock | None = None
) -> CredentialChain:
    return CredentialChain(
        profile=None, region=region, endpoint=endpoint, clock=clock or SystemClock()
    )


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
        await chain_of(None, None).load_endpoint()


@pytest.mark.usefixtures("no_region")
@pytest.mark.parametrize("region", [None, "eu-west-1"])
async def test_credentials_are_not_looked_for_to_find_the_place(
    region: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without any, the chain waits for seconds for those of an instance."""

    def look(self: object) -> None:
        raise AssertionError("the chain was asked")

    monkeypatch.setattr(botocore.session.Session, "get_credentials", look)
    with nullcontext() if region else pytest.raises(InvalidUrl, match="AWS_REGION"):
        assert (await chain_of(region, None).load_endpoint()).region == region


@pytest.mark.usefixtures("no_region")
@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
async def test_a_region_from_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "cn-north-1")
    place = await chain_of(None, None).load_endpoint()
    assert place.region == "cn-north-1"
    assert place.endpoint == "https://dynamodb.cn-north-1.amazonaws.com.cn"
    place = await chain_of(None, "http://x").load_endpoint()
    assert (place.region, place.endpoint) == ("cn-north-1", "http://x")


async def test_an_endpoint_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:9")
    place = await chain_of("eu-west-1", None).load_endpoint()
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

    def issue(name: str, minutes: float) -> None:
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

    # At their end they are renewed at once: who asks has to wait for it.
    for name, minutes in [("FIRST", 0.5), ("SECOND", 60), ("THIRD", 60)]:
        issue(name, minutes)
        await engine.perform(GET)
    assert [asked.access_key for asked in stub.asked] == ["FIRST", "SECOND", "SECOND"]
    # Until then they are at hand, and botocore is not asked.
    chain = chain_of("us-east-1", stub.endpoint)
    assert await chain.load_keys() is await chain.load_keys()


class Renewable:
    """Credentials of botocore's kind that are good for some more minutes."""

    def __init__(self, seconds_left: int) -> None:
        self.seconds_left = seconds_left
        self.asked = 0
        self.may_answer = threading.Event()
        self.fails = False

    def refresh_needed(self, within_seconds: int | None = None) -> bool:
        return self.seconds_left < (within_seconds or 15 * 60)

    def get_frozen_credentials(self) -> Any:
        self.asked += 1
        if self.asked > 1:
            assert self.may_answer.wait(30)
            if self.fails:
                raise OSError("the metadata service is down")
            self.seconds_left = 3600
        return SimpleNamespace(access_key=f"KEY{self.asked}", secret_key="x", token=None)


async def test_keys_that_are_still_good_are_used_while_new_ones_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renewable = Renewable(seconds_left=600)
    clock = ManualClock()
    chain = chain_of("r", "http://e", clock)
    monkeypatch.setattr(
        chain, "_create_session", lambda: SimpleNamespace(get_credentials=lambda: renewable)
    )
    first = [await chain.load_keys() for _ in range(5)]
    assert {keys.access_key for keys in first} == {"KEY1"}
    renewable.may_answer.set()
    async with asyncio.timeout(30):
        while (await chain.load_keys()).access_key == "KEY1":
            await asyncio.to_thread(lambda: None)
    assert (await chain.load_keys()).access_key == "KEY2"
    assert renewable.asked == 2


async def test_a_renewal_that_fails_is_tried_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    renewable = Renewable(seconds_left=600)
    renewable.fails = True
    renewable.may_answer.set()
    clock = ManualClock()
    chain = chain_of("r", "http://e", clock)
    monkeypatch.setattr(
        chain, "_create_session", lambda: SimpleNamespace(get_credentials=lambda: renewable)
    )
    for _ in range(50):
        assert (await chain.load_keys()).access_key == "KEY1"
        await asyncio.to_thread(lambda: None)
    assert renewable.asked <= 2
    clock.advance(31)
    async with asyncio.timeout(30):
        while renewable.asked < 3:
            assert (await chain.load_keys()).access_key == "KEY1"
            await asyncio.to_thread(lambda: None)
    # At the very end it is told.
    renewable.seconds_left = 10
    with pytest.raises(AccessDenied, match="metadata service is down"):
        await chain.load_keys()


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize(
    "process", ["/there/is/no/such/program", "echo this is not JSON"], ids=["missing", "garbled"]
)
async def test_a_process_that_cannot_be_used_is_told(
    open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {process}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(AccessDenied, match="could not get AWS credentials"):
        await open_engine().perform(GET)


async def test_a_token_with_a_line_end_is_told(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token\n")
    with pytest.raises(AccessDenied, match="control character"):
        await open_engine().perform(GET)


@pytest.mark.usefixtures("no_keys")
async def test_a_process_that_fails_is_told(
    open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ncredential_process = sh -c 'echo no luck >&2; exit 1'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(AccessDenied, match="no luck"):
        await open_engine().perform(GET)
