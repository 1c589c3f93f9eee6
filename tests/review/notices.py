"""What the tests of notices share: a run that asks for a review, notifiers, and a driven loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from holdfast import Context, Graph, Holdfast
from holdfast.clock import ManualClock
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.review import ReviewEntry
from holdfast.review.notice import Notice
from holdfast.review.notice_sending import NoticeSender
from holdfast.review.notifying import NoticeLoop

QUESTION = "Approve this warranty?"


@dataclass
class Claim:
    options: dict[str, Any] = field(default_factory=dict)
    status: str = ""


claims = Graph("claims", Claim)


@claims.node
async def decide(claim: Claim, ctx: Context) -> Claim:
    form = dict[str, int] if "values" in claim.options else None
    decision = await ctx.review(QUESTION, show={"months": 24}, form=form, **claim.options)
    return replace(claim, status=decision.status)


class Recorder:
    """A notifier that keeps what it gets, and does what the test says."""

    def __init__(self, name: str = "mail") -> None:
        self.name = name
        self.notices: list[Notice] = []
        self.act: Callable[[Notice], Any] = lambda _: None
        self.begun = 0
        self._news = asyncio.Condition()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return when something holds that changes with an attempt."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(holds)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def send(self, notice: Notice) -> None:
        self.begun += 1
        await self._tell()
        acted = self.act(notice)
        if asyncio.iscoroutine(acted):
            await acted
        self.notices.append(notice)
        await self._tell()

    def told(self) -> list[tuple[str, str | None]]:
        return [(notice.kind, notice.reviewer) for notice in self.notices]


def raising(error: BaseException) -> Callable[[Notice], None]:
    def act(notice: Notice) -> None:
        raise error

    return act


def kernel_of(hf: Holdfast) -> Kernel:
    return hf.reviews._kernel


class Pump:
    """A loop that a test drives: no time passes unless the test says so."""

    def __init__(self, hf: Holdfast, clock: ManualClock) -> None:
        self.loop = NoticeLoop(hf.reviews._store, NoticeSender(kernel_of(hf), hf.reviews.options))
        self._clock = clock

    async def poll(self, *, after: float = 0.0) -> None:
        """Send what is due after a time; return when nothing is under way."""
        self._clock.advance(after)
        await self.loop._send_due(poll=True)
        await self.settle()

    async def settle(self) -> None:
        while self.loop._tasks:
            await asyncio.wait(list(self.loop._tasks.values()))


async def ask(hf: Holdfast, id: str = "c-1", *, tenant: str | None = None, **options: Any) -> str:
    """Start a run that waits for a review; return the id of the review."""
    async with hf.worker([claims]):
        run = await hf.start(claims, Claim(options), id=id, tenant=tenant)
        await run.until("waiting")
    (entry,) = (await hf.reviews.list(run=id, tenant=tenant)).reviews
    return entry.id


async def finish(hf: Holdfast, id: str = "c-1") -> Claim:
    async with hf.worker([claims]):
        return await hf.run(id, graph=claims).result()


LINK = "https://reviews.example/r/token"
PAGE = "https://reviews.example/reviews/c-1~0123456789abcdef"


def notice(**changes: Any) -> Notice:
    """Return a notice as the loop makes one."""
    at = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
    entry = ReviewEntry(
        id="c-1~0123456789abcdef",
        run="c-1",
        tenant="default",
        graph="claims",
        node="decide",
        question=QUESTION,
        status="pending",
        assignees=("ana@example.com",),
        created_at=at,
    )
    made: dict[str, Any] = {
        "id": "ntc_0123",
        "kind": "requested",
        "reviewer": "ana@example.com",
        "review": entry,
        "question": QUESTION,
        "link": LINK,
        "page": PAGE,
        "command": "holdfast review show c-1~0123456789abcdef",
        "expires_at": None,
        "at": at,
        "subject": f"Please decide: {QUESTION}",
        "text": f"Please decide:\n{QUESTION}\n{LINK}\n",
        "html": f"<p>{QUESTION}</p>",
    }
    return Notice(**made | changes)
