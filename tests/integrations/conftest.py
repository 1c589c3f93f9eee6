"""Every kind of model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integrations.kinds import BedrockKind, Kind, made


@pytest.fixture(params=["offline", "openai", "bedrock"])
async def kind(request: pytest.FixtureRequest) -> AsyncIterator[Kind]:
    async with made(request.param) as each:
        yield each


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
async def bedrock() -> AsyncIterator[BedrockKind]:
    async with made("bedrock") as each:
        assert isinstance(each, BedrockKind)
        yield each
