"""A process that serves or works: ``python -m tests.server.stream_process serve|work URL [FD]``.

The server listens on a socket that the test keeps open, so that clients wait while it restarts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import dataclass, replace

import uvicorn

from holdfast import END, Context, Graph, Holdfast
from holdfast.clock import SystemClock
from holdfast.integrations.offline import Offline
from holdfast.server import ServerOptions, asgi
from holdfast.server.asgi import ServerApp

CHAPTERS = 30
WORDS = 24
SECONDS_PER_WORD = 0.015


@dataclass
class Story:
    title: str
    chapters: int = CHAPTERS
    written: int = 0


stories = Graph("stories", Story)


@stories.node
async def write(story: Story, ctx: Context) -> Story:
    await ctx.model("teller", f"Chapter {story.written} of {story.title}", stream=True)
    return replace(story, written=story.written + 1)


@stories.node
async def turn(story: Story) -> Story:
    return story


stories.route(write, turn)
stories.choose(turn, lambda story: write if story.written < story.chapters else END)


def teller() -> Offline:
    answer = " ".join(f"word{number}" for number in range(WORDS))
    return Offline(lambda request: answer, clock=SystemClock(), seconds_per_word=SECONDS_PER_WORD)


class StreamServer(uvicorn.Server):
    """Tells the followers where to resume before it closes their connections."""

    def __init__(self, config: uvicorn.Config, app: ServerApp) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.services.streams.shut_down()
        await super().shutdown(sockets)


async def serve(url: str, descriptor: int) -> None:
    async with Holdfast(url) as hf:
        app = asgi(hf, [stories], options=ServerOptions(), worker=False)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        await StreamServer(config, app).serve([socket.socket(fileno=descriptor)])


async def work(url: str) -> None:
    async with Holdfast(url, models={"teller": teller()}) as hf, hf.worker([stories]):
        os.write(sys.stdout.fileno(), b"ready\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(work(sys.argv[2]))
