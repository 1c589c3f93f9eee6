"""Two server processes on one store: both refuse a revoked key within 5 seconds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from holdfast import Holdfast
from tests.server.callers import bearer, key_for

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def server(url: str) -> AsyncIterator[httpx.AsyncClient]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.server.keyed_server",
        url,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        process.stdin.close()
        await process.wait()


async def refusal(client: httpx.AsyncClient, key: str) -> None:
    while (await client.get("/v1/runs", headers=bearer(key))).status_code == 200:
        pass


async def test_two_servers_refuse_a_revoked_key_within_five_seconds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url) as hf, server(url) as one, server(url) as other:
        revoked, kept = await key_for(hf), await key_for(hf)
        for client in (one, other):
            answer = await client.get("/v1/runs", headers=bearer(revoked))
            assert answer.status_code == 200, answer.text
        # One server revokes it, and the other learns of it from the store.
        revoking = await one.delete(f"/v1/keys/{revoked.split('_')[1]}", headers=bearer(kept))
        assert revoking.status_code == 204
        async with asyncio.timeout(5):
            await asyncio.gather(refusal(one, revoked), refusal(other, revoked))
        for client in (one, other):
            assert (await client.get("/v1/runs", headers=bearer(revoked))).status_code == 401
            assert (await client.get("/v1/runs", headers=bearer(kept))).status_code == 200
