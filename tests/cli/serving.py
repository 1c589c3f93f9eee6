"""A real server for tests of the command line: uvicorn in a thread, on a free port."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from holdfast import Holdfast
from holdfast.cli.targets import load_graphs
from holdfast.server import asgi

_SECONDS_MAX = 30


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the store ``runs.db`` of a folder and the graphs of its modules."""
    listener = socket.create_server(("127.0.0.1", 0))
    modules = sorted(file.stem for file in folder.glob("*.py"))
    own = [name for name in modules if name != "flows"]
    graphs = load_graphs(own or modules)  # a module of the test may have graphs of the same names
    started = threading.Event()
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        async with Holdfast(f"sqlite:///{folder}/runs.db") as hf:
            app = asgi(hf, graphs, worker=False)
            config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            servers.append(server)
            started.set()
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(_SECONDS_MAX)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        servers[0].should_exit = True
        thread.join(_SECONDS_MAX)
        listener.close()
        assert not thread.is_alive()
