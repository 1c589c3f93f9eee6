"""A store for each test, on SQLite, and for most tests on DynamoDB Local as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import boto3
import pytest

from holdfast import Holdfast
from holdfast.clock import SystemIds
from tests.documents.support import Town
from tests.engine.support import House, StepClock


@pytest.fixture
async def clock() -> StepClock:
    return StepClock()


@pytest.fixture
async def house(tmp_path: Path, clock: StepClock) -> AsyncIterator[House]:
    """A file of SQLite."""
    house = House(f"sqlite:///{tmp_path}/documents.db", clock)
    yield house
    await house.close()


@pytest.fixture
async def town(tmp_path: Path, clock: StepClock) -> AsyncIterator[Town]:
    """A file of SQLite and blobs in memory, whose processes can be killed at any write."""
    town = Town(tmp_path, clock)
    yield town
    await town.close()


@pytest.fixture(params=["sqlite", "dynamodb"])
async def either(
    request: pytest.FixtureRequest, tmp_path: Path, clock: StepClock
) -> AsyncIterator[House]:
    """A file of SQLite, or a table of DynamoDB Local with a bucket."""
    url = f"sqlite:///{tmp_path}/documents.db"
    if request.param == "dynamodb":
        local = request.getfixturevalue("dynamodb_local")
        moto = request.getfixturevalue("moto_server")
        name = f"documents-{SystemIds().new()}"
        boto3.client("s3", endpoint_url=moto).create_bucket(Bucket=name)
        url = (
            f"dynamodb://{name}?region=us-east-1&endpoint={local}"
            f"&bucket={name}&bucket_endpoint={moto}"
        )
    house = House(url, clock)
    if request.param == "dynamodb":
        await house.open().create()
    yield house
    await house.close()


@pytest.fixture
async def hf(house: House) -> Holdfast:
    return house.open()
