"""What one PutItem costs the client's CPU: ours against plain boto3 in threads, 32 in flight."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

from bench.figures import Figure, in_turns, ratio, show
from holdfast.storage.open import open as open_store
from holdfast.storage.writes import Absent, Put

IN_FLIGHT = 32
ROUNDS = 5
CALLS = 3_000
TEXT = "x" * 900
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}


@contextmanager
def answering_server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.answering_server"],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()


def ours(endpoint: str) -> float:
    return asyncio.run(_ours(endpoint))


async def _ours(endpoint: str) -> float:
    left = iter(range(CALLS))
    async with open_store(f"dynamodb://bench?region=us-east-1&endpoint={endpoint}") as store:

        async def put() -> None:
            for n in left:
                item = {"PK": f"RUN#{n:08}", "SK": "HEAD", "seq": n, "text": TEXT}
                await store.table.write(Put(item, Absent("PK")))

        await store.table.write(Put({"PK": "warm", "SK": "up"}))
        started = time.process_time()
        await asyncio.gather(*(put() for _ in range(IN_FLIGHT)))
        return (time.process_time() - started) / CALLS * 1000


def plain_boto3(endpoint: str) -> float:
    client = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url=endpoint,
        config=Config(max_pool_connections=IN_FLIGHT),
    )
    left = itertools.count()

    def put() -> None:
        while (n := next(left)) < CALLS:
            client.put_item(
                TableName="bench",
                Item={
                    "PK": {"S": f"RUN#{n:08}"},
                    "SK": {"S": "HEAD"},
                    "seq": {"N": str(n)},
                    "text": {"S": TEXT},
                },
                ConditionExpression="attribute_not_exists(PK)",
                ReturnConsumedCapacity="INDEXES",
            )

    client.put_item(TableName="bench", Item={"PK": {"S": "warm"}, "SK": {"S": "up"}})
    threads = [threading.Thread(target=put) for _ in range(IN_FLIGHT)]
    started = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = (time.process_time() - started) / CALLS * 1000
    client.close()
    return spent


def measure() -> list[Figure]:
    os.environ.update(CREDENTIALS)
    with answering_server() as endpoint:
        rounds = in_turns(
            {"boto3 in threads": lambda: plain_boto3(endpoint), "ours": lambda: ours(endpoint)},
            ROUNDS,
        )
    show(rounds, "ms CPU/PutItem", digits=3)
    return [
        Figure(
            "DynamoDB engine's CPU a PutItem / boto3's",
            ratio(rounds, "ours", "boto3 in threads"),
            at_most=0.5,
        )
    ]
