"""A server with authentication in a process of its own: ``python -m tests.server.keyed_server``.

It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys

from holdfast import Holdfast
from holdfast.server import ServerOptions, asgi
from tests.server.callers import listening
from tests.server.graphs import GRAPHS


async def serve(url: str) -> None:
    options = ServerOptions(authentication=True, key_rate=None, tenant_rate=None)
    async with Holdfast(url) as hf:
        app = asgi(hf, GRAPHS, options=options, worker=False)
        async with app.lifespan(), listening(app, options) as port:
            print(port, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
