"""A process that shares answers: ``python -m tests.crash.asker URL COUNT LEASE_SECONDS FILE``.

It says ``ready``, and after a line on its input asks the same question so many times at once. If it
falls to it to ask for all, it says ``asking``, leaves its pid in the file, and answers with that
after one more line. At the end it says what each of its callers got, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from holdfast import Holdfast
from holdfast.engine.effects.shared_answers import SharedAnswers

DIGEST = b"a question"
KEEP_MS = 3_600_000


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def main(url: str, count: int, lease_seconds: float, file: str) -> None:
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)

    async def ask() -> int:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        os.close(descriptor)
        say("asking")
        await lines.readline()
        return os.getpid()

    async with Holdfast(url) as hf:
        answers = SharedAnswers(hf._kernel, lease_seconds=lease_seconds)
        say("ready")
        await lines.readline()
        calls = (answers.get_or_ask("default", DIGEST, ask, keep_ms=KEEP_MS) for _ in range(count))
        say(json.dumps(await asyncio.gather(*calls)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
