"""Routes of interrupts: the reviews of a run in the shape of AG-UI 1.0."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from holdfast.errors import InvalidRequest
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.interrupts import (
    InterruptAnswer,
    InterruptPage,
    ResumeEntry,
    answer_of,
    entry_key,
    interrupt_of,
)
from holdfast.server.parameters import Cursor, IdempotencyKey, Limit, RunId
from holdfast.server.routing import route

__all__ = ["INTERRUPTS"]


class ResumeBody(msgspec.Struct, frozen=True):
    """Answers to interrupts. A RunAgentInput of AG-UI is one: other members are ignored."""

    resume: Annotated[list[ResumeEntry], Meta(min_length=1, max_length=100)]


@route("GET", "/v1/runs/{id:str}/interrupts", role="reviewer", tag="reviews", etag=True)
async def list_interrupts(
    requester: RequesterOf, id: RunId, limit: Limit = 100, cursor: Cursor = None
) -> InterruptPage:
    """List what a run waits for people to answer, as interrupts of AG-UI 1.0."""
    await requester.run(id).get()
    return await _interrupts(requester, id, limit=limit, cursor=cursor)


@route("POST", "/v1/runs/{id:str}/interrupts", role="reviewer", tag="reviews", conflicts=True)
async def resume_run(
    requester: RequesterOf,
    id: RunId,
    data: ResumeBody,
    idempotency_key: IdempotencyKey = None,
) -> InterruptPage:
    """Answer interrupts of a run with entries of AG-UI 1.0, and list those that are still open.

    A resolved entry approves or rejects, a cancelled one rejects. The same entry may be sent again.
    Interrupts without an entry stay open: they may belong to other reviewers. If an entry is
    refused, those before it count.
    """
    answers = [(entry, answer_of(entry)) for entry in data.resume]
    await requester.run(id).get()
    ids = [entry.interrupt_id for entry in data.resume]
    if len({*ids}) < len(ids) or not all(each.startswith(f"{id}~") for each in ids):
        raise InvalidRequest(
            "resume must answer interrupts of this run, each of them once", field="resume"
        )
    for number, (entry, answer) in enumerate(answers):
        await _answer(requester, entry, answer, key=entry_key(entry, number, idempotency_key))
    return await _interrupts(requester, id, limit=100, cursor=None)


async def _answer(
    requester: Requester, entry: ResumeEntry, answer: InterruptAnswer, *, key: str
) -> None:
    reviews, by = requester.hf.reviews, requester.identity.person
    if not answer.approved:
        await reviews.reject(
            entry.interrupt_id,
            by=by,
            comment=answer.comment,
            seen=entry.seen,
            key=key,
            tenant=requester.tenant,
        )
        return
    await reviews.approve(
        entry.interrupt_id,
        by=by,
        comment=answer.comment,
        values=answer.values if answer.edited_args is UNSET else answer.edited_args,
        seen=entry.seen,
        key=key,
        tenant=requester.tenant,
    )


async def _interrupts(
    requester: Requester, run: str, *, limit: int, cursor: str | None
) -> InterruptPage:
    reviews, tenant = requester.hf.reviews, requester.tenant
    page = await reviews.list(run=run, tenant=tenant, limit=limit, cursor=cursor)
    shown = [await reviews.get(each.id, tenant=tenant) for each in page.reviews]
    pending = [interrupt_of(each) for each in shown if each.status == "pending"]
    return InterruptPage(pending, page.cursor)


INTERRUPTS = (list_interrupts, resume_run)
