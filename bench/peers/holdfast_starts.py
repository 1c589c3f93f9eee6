"""Starts runs in this process, without a worker; prints the CPU of one start in milliseconds."""

from __future__ import annotations

import asyncio
import resource
import sys

from holdfast_http import ten_steps

from holdfast import Holdfast


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(folder: str, count: int) -> None:
    async with Holdfast(f"sqlite:///{folder}/runs.db") as hf:
        for number in range(200):
            await hf.start(ten_steps, number)
        before = cpu_seconds()
        for number in range(count):
            await hf.start(ten_steps, number)
        print((cpu_seconds() - before) / count * 1000)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
