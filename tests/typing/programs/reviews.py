"""Reviews: the values of a decision have the type of the form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from holdfast import BlockingContext, Context, Graph, Holdfast, ReviewDecision, days
from holdfast.sync import Holdfast as BlockingHoldfast


@dataclass
class Terms:
    months: int


class Notes(TypedDict):
    text: str


@dataclass
class Warranty:
    months: int = 0


class Changes(TypedDict):
    months: int


graph = Graph("warranty", Warranty)


@graph.node
async def ask(state: Warranty, ctx: Context) -> Changes:
    plain = await ctx.review("Approve?", show=["months"], assignees="ana", expires=days(7))
    nothing: None = plain.values
    edited = await ctx.review("Approve?", form=Terms, values=Terms(24), quorum=2)
    months: int = edited.values.months
    noted: ReviewDecision[Notes] = await ctx.review("Approve?", form=Notes)
    text: str = noted.values["text"]
    wrong: str = edited.values.months  # wrong: it is an int
    await ctx.review("Approve?", form=Terms, expires=[7])  # wrong: no duration
    await ctx.review("Approve?", quorum="two")  # wrong: no number
    print(text, nothing, wrong)
    return {"months": months}


@graph.node
def ask_blocking(state: Warranty, ctx: BlockingContext) -> Changes:
    decision = ctx.review("Approve?", form=Terms)
    months: int = decision.values.months
    wrong: str = decision.values.months  # wrong: it is an int
    print(wrong)
    return {"months": months if decision.approved else 0}


async def decide(hf: Holdfast, blocking: BlockingHoldfast) -> None:
    page = await hf.reviews.list(assignee="ana")
    for entry in page.reviews:
        review = await hf.reviews.approve(entry.id, by="ana", values={"months": 12})
        print(review.status, review.decision and review.decision.by)
    blocking.reviews.reject("id", by="ana", comment="too old")
    await hf.reviews.approve("id")  # wrong: nobody decides
