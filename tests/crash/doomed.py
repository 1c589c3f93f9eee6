"""A process that dies at a write: ``python -m tests.crash.doomed ROLE URL RUN NUMBER SIDE``.

Its roles: ``live`` does everything to a run, from its start to its end; ``inherit`` goes on with
what somebody left behind, until the run waits; ``signal`` only sends the first signal; ``family``
lets two runs of a session go on, the first with branches and children. It says what was
acknowledged, and each write before it is sent. With NUMBER 0 it does not die.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from holdfast import Holdfast
from holdfast.clock import SystemClock
from tests.crash.brink import open_at_brink
from tests.crash.flows import BRANCH_SIGNALS, FAMILY, SESSION, SIGNALS, brief, varied, wide

LEASE_SECONDS = 3.0
ASK_SECONDS = 0.01
# Nothing is held in place: the pause before another attempt is a pause like others.
OPTIONS: dict[str, Any] = {
    "lease": LEASE_SECONDS,
    "poll": 0.02,
    "hold": 0,
}


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def live(hf: Holdfast, run: str) -> None:
    async with hf.worker([varied], **OPTIONS):
        handle = await hf.start(varied, {}, id=run)
        say("started")
        for number, id in enumerate(SIGNALS, 1):
            await waiting(hf, run, f"answer#{number}")
            await hf.run(run).signal("answer", id, signal_id=id)
            say(f"signalled {id}")
        await handle.result()


async def inherit(hf: Holdfast, run: str) -> None:
    async with hf.worker([varied], **OPTIONS):
        await waiting(hf, run, "answer#1")


async def send(hf: Holdfast, run: str) -> None:
    await hf.run(run).signal("answer", SIGNALS[0], signal_id=SIGNALS[0])


async def family(hf: Holdfast, run: str) -> None:
    async with hf.worker(FAMILY, **OPTIONS):
        await hf.start(wide, {}, id=run, session=SESSION)
        say("started first")
        second = await hf.start(brief, {}, id=f"{run}-next", session=SESSION)
        say("started second")
        await waiting(hf, run, *(f"{name}#1" for name in BRANCH_SIGNALS))
        for name in BRANCH_SIGNALS:
            await hf.run(run).signal(name, signal_id=name)
            say(f"signalled {name}")
        await second.result()


async def waiting(hf: Holdfast, run: str, *keys: str) -> None:
    """Return when the run waits for these."""
    while sorted(wait.key for wait in (await hf.run(run).get()).waits) != sorted(keys):
        # Asked without a pause, two processes would take the disk's turns from their own writers.
        await SystemClock().sleep(ASK_SECONDS)


async def main(role: str, url: str, run: str, number: str, side: Any) -> None:
    async with Holdfast(url, store=open_at_brink(url, int(number), side, say)) as hf:
        await {"live": live, "inherit": inherit, "signal": send, "family": family}[role](hf, run)
    say("ended")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
