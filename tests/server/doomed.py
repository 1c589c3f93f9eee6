"""A server that dies at a write: ``python -m tests.server.doomed URL NUMBER SIDE``.

It serves without a worker, says its address, and then each write before it is sent. With NUMBER 0
it does not die.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from holdfast import Holdfast
from holdfast.server import asgi
from holdfast.server.binding import listening_socket
from holdfast.server.process import listen
from tests.crash.brink import Side, open_at_brink
from tests.server.graphs import GRAPHS


async def main(url: str, number: int, side: Side) -> None:
    # No write may come from the opening of the store, so that the first one is that of a start.
    async with Holdfast(url) as first:
        await first.list()
        await first.fleet.publish(GRAPHS)
    store = open_at_brink(url, number, side, say)
    on = listening_socket("127.0.0.1", 0)
    async with Holdfast(url, store=store) as hf:
        app = asgi(hf, GRAPHS, worker=False)
        async with (
            app.lifespan(),
            listen(on, app.services.options, requests_seconds_max=1) as listener,
        ):
            listener.app = app
            say(f"http://127.0.0.1:{on.getsockname()[1]}")
            await asyncio.Event().wait()


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), cast(Side, sys.argv[3])))
