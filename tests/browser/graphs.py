"""A graph whose runs wait for people, for the tests in a browser."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date
from typing import Annotated, Any, Literal

from msgspec import Meta

from holdfast import Context, Graph

LETTER = (
    "Dear Sir or Madam,\n\nthe boiler in the basement (serial number 4711-B) has lost pressure "
    "three times since March. Your technician replaced the valve on 3 June, and the fault came "
    "back on 9 June. I ask you to repair it under the warranty, or to replace it.\n\n"
    "Yours faithfully\nJ. Tenant"
)
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202egnp.exe"


@dataclass
class Holder:
    name: str
    email: str | None = None


@dataclass
class Terms:
    months: Annotated[int, Meta(ge=1, le=60, description="From the day of the purchase.")]
    cover: Literal["parts", "parts and labour", "replacement"]
    begins: date
    holder: Holder
    exclusions: list[str] = field(default_factory=list)
    deductible: float | None = None
    urgent: bool = False
    extras: dict[str, int] = field(default_factory=dict)


@dataclass
class Claim:
    question: str = "Approve this warranty?"
    shown: dict[str, Any] | None = None
    assignees: list[str] = field(default_factory=list)
    expires: str = "7d"
    remind_after: str | None = None
    quorum: int = 1
    with_form: bool = True
    outcome: str = ""
    months: int = 0


DATA = {
    "document": "s3://claims/2026/11/boiler.pdf",
    "risk": {"level": "high", "score": 0.87, "reasons": ["third repair", "no receipt"]},
    "value_usd": 2480.5,
    "in_time": True,
    "receipt": None,
    "letter": LETTER,
}
TERMS = Terms(
    months=24,
    cover="parts and labour",
    begins=date(2025, 3, 1),
    holder=Holder("J. Tenant", "tenant@example.com"),
    exclusions=["frost", "improper use"],
    urgent=True,
    extras={"visits": 2},
)

warranty = Graph("warranty", Claim)


@warranty.node
async def review_claim(claim: Claim, ctx: Context) -> Claim:
    decision = await ctx.review(
        claim.question,
        show=DATA if claim.shown is None else claim.shown,
        form=Terms if claim.with_form else None,
        values=TERMS if claim.with_form else None,
        assignees=claim.assignees,
        expires=claim.expires,
        remind_after=claim.remind_after,
        quorum=claim.quorum,
    )
    months = decision.values.months if claim.with_form and decision.approved else 0
    return replace(claim, outcome=decision.status, months=months)


GRAPHS = [warranty]
