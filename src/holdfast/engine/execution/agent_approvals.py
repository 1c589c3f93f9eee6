"""Lets people approve the tool calls of one answer of a model together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.engine.effects.call_host import CallRequest, ReviewedCall
from holdfast.engine.execution.context import Context, calls_of
from holdfast.graph.approval import ApprovalTerms
from holdfast.graph.tool import Tool

__all__ = ["MakeCall", "call_together"]


class MakeCall(Protocol):
    """Makes one of the calls, after the review that decided about it."""

    def __call__(
        self, number: int, reviewed: ReviewedCall | None = None
    ) -> Awaitable[dict[str, Any]]: ...


async def call_together(
    ctx: Context,
    planned: Sequence[tuple[Tool[..., Any], Mapping[str, Any]] | None],
    make: MakeCall,
    *,
    model: str,
) -> list[dict[str, Any]]:
    """Make the calls of one answer, and return their messages; one review is about all of them.

    ``planned`` has the tool and the arguments of each call; None if it needs no approval. Calls
    that other people must approve, or in another time, have another review: a reviewer must not
    approve what only others may. Calls that need no approval are made at once.
    """
    batches: dict[ApprovalTerms, list[int]] = {}
    for number, call in enumerate(planned):
        if call is not None and call[0].approval is not None:
            batches.setdefault(call[0].approval.terms, []).append(number)
    batched = {number for numbers in batches.values() for number in numbers}
    messages: dict[int, dict[str, Any]] = {}

    async def make_one(number: int, reviewed: ReviewedCall | None = None) -> None:
        messages[number] = await make(number, reviewed)

    async def make_batch(numbers: list[int]) -> None:
        calls = calls_of(ctx)
        subject = calls.next_id("approvals", None)  # before awaiting anything
        requests = dict(_requests(planned, numbers, model))
        needing = await calls.needing_approval(subject, requests)
        named = dict(zip(requests, numbers, strict=True))

        async def make_reviewed() -> None:
            reviewed = await calls.decided_together(subject, needing)
            made = [
                asyncio.ensure_future(make_one(named[name], reviewed[name])) for name in needing
            ]
            await calls.let_others_begin()
            await asyncio.gather(*made)

        await asyncio.gather(
            *(make_one(number) for name, number in named.items() if name not in needing),
            *([make_reviewed()] if needing else []),
        )

    await asyncio.gather(
        *(make_one(number) for number in range(len(planned)) if number not in batched),
        *map(make_batch, batches.values()),
    )
    return [messages[number] for number in range(len(planned))]


def _requests(
    planned: Sequence[tuple[Tool[..., Any], Mapping[str, Any]] | None],
    numbers: Sequence[int],
    model: str,
) -> list[tuple[str, CallRequest]]:
    """Return calls by the names that they have in the review: ``transfer_1``."""
    found: list[tuple[str, CallRequest]] = []
    for place, number in enumerate(numbers, 1):
        call = planned[number]
        assert call is not None
        tool, arguments = call
        request = CallRequest(
            tool=tool, args=(), kwargs=arguments, retry=tool.retry, asked_by=model
        )
        found.append((f"{tool.name.rpartition('.')[2]}_{place}", request))
    return found
