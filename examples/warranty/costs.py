"""What the documents of a store cost, before and after, and what a month would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast import Holdfast, RunEntry, RunFilter, RunHandle
from holdfast.model.pricing import MODEL_PRICES
from holdfast.storage import PRICES
from warranty.application import Application
from warranty.metering import IdleWorker, UnitsOfKind, meter_documents
from warranty.reading import TEXTRACT_PAGE_USD

__all__ = ["CostReport", "DocumentCost", "cost_report"]

DAYS_PER_MONTH = 730 / 24
_MODEL = "model."
_FIRST_NODES = frozenset({"classify", "read"})
"""The nodes before the review: a pipeline without a recorded state runs them again to resume."""


@dataclass
class DocumentCost:
    """What one document cost, by the history of its run."""

    id: str
    status: str
    risk: str = ""
    decision: str = ""
    first_calls: int = 0
    """Calls to models before the review."""
    first_usd: float = 0.0
    last_calls: int = 0
    """Calls to models after it."""
    last_usd: float = 0.0
    pages: int = 0
    """Pages that were read."""
    reading_usd: float = 0.0
    repeated: int = 0
    """Calls that were made, and paid, a second time."""

    @property
    def kind(self) -> str:
        """The kind of `metering.KINDS`; empty while it is not known."""
        if self.risk != "high":
            return self.risk
        if not self.decision:
            return ""
        return "high, approved" if self.decision == "approved" else "high, rejected"


@dataclass
class CostReport:
    """The costs of a store's documents, and of a month with documents like them."""

    per_day: int
    documents: list[DocumentCost]
    units: list[UnitsOfKind]
    idle: IdleWorker = field(default_factory=IdleWorker)

    @property
    def decided(self) -> list[DocumentCost]:
        """The documents that a person decided: those that resumed."""
        return [each for each in self.documents if each.decision]

    @property
    def saved_usd(self) -> float:
        """What running the first nodes again would have cost, once for each resume."""
        return sum(each.first_usd + each.reading_usd for each in self.decided)

    @property
    def documents_per_month(self) -> float:
        return self.per_day * DAYS_PER_MONTH

    def mix(self) -> dict[str, float]:
        """Return the share of each kind among the documents whose kind is known."""
        counts = Counter(each.kind for each in self.documents if each.kind)
        total = sum(counts.values())
        return {kind: count / total for kind, count in sorted(counts.items())}

    @property
    def table_usd(self) -> float:
        """What the documents of a month cost the table, by the mix of this store."""
        usd = {each.kind: each.usd for each in self.units}
        share = sum(share * usd[kind] for kind, share in self.mix().items())
        return share * self.documents_per_month

    def monthly(self, of_document: Sequence[float]) -> float:
        """Return a month's dollars from those of the documents of this store."""
        if not of_document:
            return 0.0
        return sum(of_document) / len(of_document) * self.documents_per_month

    @property
    def models_usd(self) -> float:
        return self.monthly([each.first_usd + each.last_usd for each in self._classified])

    @property
    def reading_usd(self) -> float:
        return self.monthly([each.reading_usd for each in self._classified])

    @property
    def _classified(self) -> list[DocumentCost]:
        return [each for each in self.documents if each.kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the report in plain types."""
        return {
            "documents": [asdict(each) for each in self.documents],
            "saved_usd": self.saved_usd,
            "repeated_calls": sum(each.repeated for each in self.documents),
            "units": [asdict(each) for each in self.units],
            "month": {
                "documents": self.documents_per_month,
                "mix": self.mix(),
                "models_usd": self.models_usd,
                "reading_usd": self.reading_usd,
                "table_usd": self.table_usd,
                "idle_worker_usd": self.idle.usd,
            },
            "prices": _prices(),
        }

    def __str__(self) -> str:
        return "\n".join(
            [
                *self._shown_documents(),
                "",
                *self._shown_table(),
                "",
                *self._shown_month(),
                "",
                *self._shown_idle(),
                "",
                _prices(),
            ]
        )

    def _shown_documents(self) -> list[str]:
        if not self.documents:
            return ["0 documents: add some, for example with `python -m warranty samples`"]
        risks = Counter(each.risk or "not classified" for each in self.documents)
        ends = Counter(each.decision or each.status for each in self.documents)
        return [
            f"{len(self.documents)} documents: "
            + ", ".join(f"{count} {risk}" for risk, count in sorted(risks.items())),
            "They are: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())),
        ]

    def _shown_table(self) -> list[str]:
        """Return the table of the article, with the figures of this store."""
        count = len(self.decided)
        if not count:
            return ["No person has decided about a document yet: there is no resume to compare."]
        again = sum(each.first_calls + each.last_calls for each in self.decided) / count
        last = sum(each.last_calls for each in self.decided) / count
        last_usd = sum(each.last_usd for each in self.decided) / count
        again_usd = sum(each.first_usd for each in self.decided) / count + last_usd
        pages = sum(each.pages for each in self.decided) / count
        reading = sum(each.reading_usd for each in self.decided)
        repeated = sum(each.repeated for each in self.documents)
        rows = [
            ("", "before: a resume runs all again", "after: a resume goes on"),
            (
                "High-risk document: model calls",
                f"{again:g} on a resume, ${again_usd:.6f}",
                f"{last:g} on a resume, ${last_usd:.6f}",
            ),
            (
                "High-risk document: Textract",
                f"on every run: pages {pages:g}, ${reading / count:.4f}",
                "once, its text is stored",
            ),
            (
                "Redundant re-processing",
                f"${self.saved_usd:.6f}, resumes: {count}",
                f"{repeated} calls",
            ),
            ("State cleanup", "manual", "automatic, by TTL"),
            ("DynamoDB, for the documents", "$0", f"${self.table_usd:.2f} a month"),
        ]
        return [f"{name:<32} {before:<34} {after}" for name, before, after in rows]

    def _shown_month(self) -> list[str]:
        mix = ", ".join(f"{share:.0%} {kind}" for kind, share in self.mix().items())
        return [
            f"A month at {self.per_day:,} documents a day ({self.documents_per_month:,.0f}): {mix}",
            f"  models                {_dollars(self.models_usd)}",
            f"  Textract              {_dollars(self.reading_usd)}",
            f"  table, the documents  {_dollars(self.table_usd)}",
            *(
                f"    {each.kind:<20} {each.writes:5g} write and {each.reads:5g} read units a "
                f"document; {each.pause_writes:g} write units for the pause"
                for each in self.units
            ),
        ]

    def _shown_idle(self) -> list[str]:
        slow = replace(self.idle, poll_seconds=5)
        rare = replace(self.idle, notice_poll_seconds=300)
        shard = replace(self.idle, shards=self.idle.shards + 1).usd - self.idle.usd
        return [
            "In addition, each worker that waits for work, a month:",
            f"  polling               {_dollars(self.idle.polling_usd)}",
            f"  polling for notices   {_dollars(self.idle.notices_usd)}",
            f"  heartbeat and upkeep  {_dollars(self.idle.upkeep_usd)}",
            "To reduce it:",
            f"  hf.worker(…, poll=5) costs ${slow.usd:.2f}; a document then waits up to 5 seconds",
            f"  ReviewOptions(poll=300) costs ${rare.notices_usd:.3f} instead of "
            f"${self.idle.notices_usd:.3f}; a repeated notice is then up to 5 minutes late",
            f"  do not grow the {self.idle.shards} shards: each one more costs ${shard:.2f}",
            "  Lambda instead of a worker (warranty.functions): the schedule costs the table $0.19",
        ]


async def cost_report(
    hf: Holdfast, app: Application, *, tenant: str | None = None, per_day: int = 500
) -> CostReport:
    """Read the histories of all documents in a store, and meter one document of each kind."""
    documents: list[DocumentCost] = []
    cursor: str | None = None
    while True:
        page = await hf.list(RunFilter(graph=app.graph.name), tenant=tenant, cursor=cursor)
        documents += [
            await _document_cost(hf.run(entry.id, tenant=tenant), entry) for entry in page.runs
        ]
        cursor = page.cursor
        if cursor is None:
            break
    return CostReport(per_day, documents, await meter_documents())


async def _document_cost(run: RunHandle[Any], entry: RunEntry) -> DocumentCost:
    found = DocumentCost(entry.id, entry.status)
    seen: set[tuple[Any, ...]] = set()
    cursor: str | None = None
    while True:
        page = await run.history(limit=1_000, cursor=cursor)
        for each in page.entries:
            details = each.details
            if each.kind == "node":
                delta: dict[str, Any] = details.get("delta") or {}
                if each.node == "classify":
                    found.risk = delta.get("risk") or found.risk
                decision: dict[str, str] = delta.get("decision") or {}
                found.decision = decision.get("status") or found.decision
            elif each.kind == "call" and details.get("failure") is None:
                call = (each.node, details["visit"], details["call"])
                found.repeated += call in seen
                seen.add(call)
                _add_call(found, each.node or "", details)
        cursor = page.cursor
        if cursor is None:
            return found


def _add_call(found: DocumentCost, node: str, details: dict[str, Any]) -> None:
    if details["call"].startswith(_MODEL):
        if node in _FIRST_NODES:
            found.first_calls += 1
            found.first_usd += details["spent"]["usd"]
        else:
            found.last_calls += 1
            found.last_usd += details["spent"]["usd"]
    elif isinstance(details.get("result"), dict) and "pages" in details["result"]:
        found.pages += details["result"]["pages"]
        found.reading_usd += details["result"]["usd"]


def _dollars(usd: float) -> str:
    return f"${usd:9.2f}"


def _prices() -> str:
    lists = " and ".join(str(each.valid_from) for each in MODEL_PRICES)
    return (
        f"Prices: DynamoDB in {PRICES.region} since {PRICES.valid_from}; models by the lists of "
        f"{lists}; Textract ${TEXTRACT_PAGE_USD * 1000:.2f} for 1,000 pages, November 2026."
    )
