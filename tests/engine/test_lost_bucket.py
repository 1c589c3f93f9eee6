"""A worker that reaches its table and not its bucket: DynamoDB Local, and S3 on a closed port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import boto3
import pytest

from holdfast import Graph, Holdfast
from holdfast.clock import SystemIds
from holdfast.errors import EndpointUnreachable
from soak.proxy import Proxy
from tests.engine.support import WAIT_SECONDS_MAX, House, StepClock, incompressible

PATIENCE_SECONDS = 20.0
PROBE_SECONDS_MAX = 30
"""The longest pause between two probes of a bucket."""

graph = Graph("large", dict)


@graph.node
async def work(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


class Site(NamedTuple):
    """One table and one bucket, and two processes: only one of them reaches the bucket."""

    house: House
    healthy: Holdfast
    sick: Holdfast
    way: Proxy
    """What the sick process needs to reach the bucket; it refuses connections at first."""

    async def start_large(self, id: str) -> None:
        """Start a run whose input is in the bucket."""
        await self.healthy.start(graph, {"text": incompressible(1, 20_000)}, id=id)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Move the clock on until something is so."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not reached():
                self.house.clock.advance(1)
                await self.healthy.list()  # the workers get as long as the table takes to answer


@pytest.fixture
async def site(dynamodb_local: str, moto_server: str, clock: StepClock) -> AsyncIterator[Site]:
    name = f"engine-{SystemIds().new()}"
    boto3.client("s3", endpoint_url=moto_server).create_bucket(Bucket=name)

    def url_of(bucket_endpoint: str) -> str:
        return (
            f"dynamodb://{name}?region=us-east-1&endpoint={dynamodb_local}"
            f"&bucket={name}&bucket_endpoint={bucket_endpoint}"
        )

    async with Proxy(int(moto_server.rpartition(":")[2])).serving() as way:
        await way.refuse()
        house = House(url_of(moto_server), clock)
        healthy, sick = house.open(), house.open(url=url_of(way.endpoint))
        await healthy.create()
        yield Site(house, healthy, sick, way)
        await house.close()


async def test_a_worker_without_its_bucket_leaves_runs_to_one_that_reaches_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
    house = site.house
    await site.start_large("first")
    async with house.worker(site.sick, graph) as cut_off:
        cut_off._owner.store_retry_seconds = PATIENCE_SECONDS
        await site.until(lambda: cut_off.counts["claimed"] == 1)
        assert (await site.healthy.run("first").get()).owner == cut_off.id

        # It releases the run, for which a healthy worker has waited, and says why.
        async with house.worker(site.healthy, graph) as healthy:
            await site.until(lambda: healthy.counts["finished"] == 1)
            assert (await site.healthy.run("first").result())["done"]
            assert (await site.healthy.run("first").get()).resume_failures == 0
        assert isinstance(cut_off.health.error, EndpointUnreachable)
        assert cut_off.health.what == "drive runs"
        told = [record.message for record in caplog.records if "cannot" in record.message]
        assert len(told) == 1
        assert told[0].startswith(f"worker {cut_off.id} cannot drive runs: EndpointUnreachable: ")

        # It claims no other run, though it is due and the only worker.
        await site.start_large("second")
        for _ in range(3):
            await house.move(PROBE_SECONDS_MAX + 1, cut_off)
        assert (await site.healthy.run("second").get()).owner is None
        assert cut_off.counts["claimed"] == cut_off.counts["cut off"] == 1
        assert not cut_off.health.ok

        # It goes on as soon as it reaches the bucket.
        await site.way.accept()
        await site.until(lambda: cut_off.counts["finished"] == 1)
        assert cut_off.health.ok
        assert (await site.healthy.run("second").result())["done"]
        told = [record.message for record in caplog.records if "can drive runs" in record.message]
        assert len(told) == 1
