"""A process with reviews: ``python -m tests.crash.reviewed ROLE URL FOLDER NUMBER SIDE``.

Its roles: ``live`` starts a run, works, notifies the reviewer, decides when the mail is there, and
stays until the reminder went out; ``work`` works and notifies until the mail is there; ``decide``
only decides. It says what was acknowledged, and each write before it is sent; at the write of that
number it dies, at none if the number is 0. Mails and reminders are lines of files in the folder,
which not even kill -9 undoes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypedDict

from holdfast import Context, Graph, Holdfast, ReviewOptions
from holdfast.clock import SystemClock
from holdfast.model.review import ReviewEntry
from holdfast.review import notifying
from holdfast.review.notice import Notice
from tests.crash.brink import Side, open_at_brink
from tests.crash.doomed import ASK_SECONDS, OPTIONS, say

REVIEWER = "ana@example.com"
COMMENT = "looks right"
RUN = "document"
QUESTION = "Approve this warranty?"
LEASE_MS = 1_000
"""How long a process has a notice for itself: short, so that a test sees what follows."""

folder: ContextVar[Path] = ContextVar("folder")
"""Where mails and reminders go: a context of its own for each of several in one process."""


class Warranty(TypedDict, total=False):
    risk: str
    approved: bool
    receipt: str


warranty = Graph("warranty", Warranty)


def write_down(kind: str, *words: str) -> None:
    """Write a line into a file of this process; when this returns, it is on the disk."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    file = os.open(folder.get() / f"{kind}-{os.getpid()}", flags)
    try:
        os.write(file, (" ".join(words) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


def written(kind: str) -> list[list[str]]:
    """Return the lines of all processes."""
    files = sorted(folder.get().glob(f"{kind}-*"))
    return [line.split() for file in files for line in file.read_text().splitlines()]


class FileMail:
    """Sends mails into a file."""

    name = "file"

    async def send(self, notice: Notice) -> None:
        write_down("mails", notice.kind, str(notice.reviewer), notice.id)


async def send_reminder(run: str, idempotency_key: str) -> str:
    """Remind a tenant of a warranty; the receiver sends one mail for a key."""
    write_down("reminders", run, idempotency_key)
    return f"reminded of {run}"


@warranty.node
async def review(state: Warranty, ctx: Context) -> Warranty:
    decision = await ctx.review(QUESTION, show=["risk"], assignees=REVIEWER)
    return {"approved": decision.approved}


@warranty.node
async def remind(state: Warranty, ctx: Context) -> Warranty:
    return {"receipt": await ctx.call(send_reminder, ctx.run_id)}


warranty.route(review, remind)


def opened(url: str, **options: Any) -> Holdfast:
    """Return an instance that sends mails into the folder."""
    return Holdfast(url, reviews=ReviewOptions(notifiers=[FileMail()], poll=1), **options)


async def working(stack: AsyncExitStack, hf: Holdfast) -> None:
    """Work and notify as long as the stack is open."""
    await stack.enter_async_context(hf.worker([warranty], **OPTIONS))
    await stack.enter_async_context(hf.reviews.notify())


async def mailed(hf: Holdfast) -> ReviewEntry:
    """Return the review of the run once it is decided, or a mail about it is there."""
    while True:
        if written("mails"):
            for status in ("decided", "pending"):
                if listed := (await hf.reviews.list(run=RUN, status=status)).reviews:
                    return listed[0]
        await SystemClock().sleep(ASK_SECONDS)


async def live(hf: Holdfast) -> None:
    async with AsyncExitStack() as stack:
        await working(stack, hf)
        handle = await hf.start(warranty, {"risk": "high"}, id=RUN)
        say("started")
        entry = await mailed(hf)
        await hf.reviews.approve(entry.id, by=REVIEWER, comment=COMMENT)
        say("decided")
        await handle.result()


async def work(hf: Holdfast) -> None:
    async with AsyncExitStack() as stack:
        await working(stack, hf)
        await mailed(hf)
        await hf.run(RUN).until("waiting")


async def decide(hf: Holdfast) -> None:
    entry = await mailed(hf)
    await hf.reviews.approve(entry.id, by=REVIEWER, comment=COMMENT)
    say("decided")


async def main(role: str, url: str, place: str, number: str, side: Side) -> None:
    folder.set(Path(place))
    notifying.LEASE_MS = LEASE_MS
    async with opened(url, store=open_at_brink(url, int(number), side, say)) as hf:
        await {"live": live, "work": work, "decide": decide}[role](hf)
    say("ended")


if __name__ == "__main__":
    role, url, place, number, side = sys.argv[1:]
    asyncio.run(main(role, url, place, number, "before" if side == "before" else "after"))
