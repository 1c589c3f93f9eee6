"""Answers that runs share, checked whenever one is asked for, written, given or recorded.

- A process asks only while it holds the question's lease, unless it stalled; so at most one asks at
  a time, and a standing answer is not paid for again.
- A lease that counts is not taken over, an answer that counts is not removed, and an asker that is
  alive renews its lease.
- An answer in the table was given to the process that holds the lease, for a run of that tenant.
- A run gets an answer that was given to a run of its tenant. The run that asked for it pays; every
  other run pays nothing, and its record says what it saved.
- A call whose answer is recorded does not ask again.
- A run that waits for a quota to ask has nothing reserved for that question.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.model.event import CallFinished, Event
from holdfast.model.invocation import Answer, Request
from holdfast.model.quota import Quota
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import QuotaWait
from holdfast.records.codec import unpack_value
from holdfast.records.head import Head
from holdfast.records.journal import Content
from holdfast.records.keys import answer_key
from holdfast.records.prompt_hash import prompt_hash
from holdfast.records.shared_answer import SharedAnswerRow, shared_answer_of
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from holdfast.storage.operations import WriteItem, WriteOperation
from holdfast.storage.writes import Update
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.once import Effect, Journey
from tests.simulation.oracle import cost_of, digest_of
from tests.simulation.process import Process
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from holdfast.engine.execution.context import Context
    from tests.simulation.world import World

__all__ = ["KEEP_SECONDS", "SAGE", "SAGE_QUOTA", "TOPICS", "Question", "Shared", "sides"]

SAGE = "sage"
"""The model whose answers runs share."""
SAGE_QUOTA = Quota("sage", requests=1, per=5)
TOPICS = ("brief", "long")
"""What it is asked; an answer about the second is too large for an item."""
KEEP_SECONDS = 40.0
"""For how long an answer is shared."""
_RENEWED_MS = 20_000
"""For so long a lease counts at least after its asker took or renewed it."""


@dataclass(eq=False, kw_only=True)
class Question(Journey):
    """A shared question under way, with the process that asks it."""

    process: Process
    at: Key
    since: float

    @property
    def goes_on(self) -> bool:
        """Whether its process was there all the time to renew the lease."""
        return not self.process.crashed and self.process.stalled_until <= self.since


@dataclass
class Lease:
    """The right to ask, as the process that took it has it."""

    id: str
    process: str
    since: float
    renewals: int = 0
    """How many renewals were sent since the last one that was applied."""


@dataclass
class Given:
    """What was truly answered to one question of one tenant, and to which runs."""

    costs: dict[str, Spending] = field(default_factory=dict)
    """What each answer cost, by its text."""
    payers: dict[str, str] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)


class Shared:
    """Watches the questions that runs share."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str], *, skew_ms: int) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._skew_ms = skew_ms
        self._given: dict[Key, Given] = {}
        self._leases: dict[Key, Lease] = {}
        self._taken: dict[tuple[str, Key], float] = {}
        """When each process last took each lease."""
        self._under_way: dict[Question, None] = {}
        self._digests: dict[bytes, bytes] = {}
        """What names a question among the answers, by the digest in its record."""
        self._recorded: Counter[tuple[str, str, str, int, bytes]] = Counter()
        world.on_sent(self._sent)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    # --- questions --------------------------------------------------------------------------------

    def sets_out(
        self, context: Context, process: Process, request: Request, sides: int
    ) -> Question:
        """Hear that a run asks for all, one of ``sides`` equal questions; check that it may."""
        head = context._visit.claimed.head
        digest, name = digest_of(request), prompt_hash(request)
        self._digests[digest] = name
        question = Question(
            of=f"{head.key.id} {request.messages[0]['content']}",
            effect=Effect(tool=SAGE),
            key=request.idempotency_key,
            chronicle=self._runs.of_row(head),
            epoch=head.epoch,
            process=process,
            at=answer_key(head.key.tenant, name),
            since=self._world.loop.time(),
        )
        self._under_way = {other: None for other in self._under_way if not other.process.crashed}
        broken = self._check_lease(question) or self._check_new(context, head, digest, sides)
        self._under_way[question] = None
        if broken is not None:
            # Not raised: in a node it would only make the node fail.
            self._world.loop.fail(Broken(f"shared answers: {question.of} sets out, and {broken}"))
        self._seen["asked for all"] += 1
        return question

    def _check_lease(self, question: Question) -> str | None:
        taken = self._taken.get((question.process.name, question.at))
        if taken is None:
            return "its process never took the lease"
        if question.process.stalled_until > taken:
            self._seen["asked after a stall"] += 1
            return None
        for other in self._under_way:
            if other.at == question.at and other.goes_on and not self._is_unrenewed(other):
                return f"{other.of} is being asked by {other.process.name}"
        lease = self._leases.get(question.at)
        if lease is None or lease.process != question.process.name:
            if (self._world.loop.time() - taken) * 1000 >= _RENEWED_MS:
                return None  # nothing of what it sent to renew it arrived
            return f"the lease is {lease}, not that of {question.process.name}"
        return None

    def _is_unrenewed(self, other: Question) -> bool:
        """Return whether the store kept an asker from renewing its lease."""
        lease = self._leases.get(other.at)
        return lease is None or lease.process != other.process.name

    def _check_new(self, context: Context, head: Head, digest: bytes, sides: int) -> str | None:
        place = (head.key.pk, head.generation, context.branch, context.visit, digest)
        if self._recorded[place] < sides:
            return None
        row = self._runs.row(head.key)
        if row is not None and row.epoch > head.epoch:
            return None  # of what it does not know yet it comes to nothing
        return "its answer is recorded"

    def reached(self, question: Question, answer: Answer | Exception) -> None:
        """Hear what the model answers."""
        if not isinstance(answer, Answer):
            return
        given = self._given.setdefault(question.at, Given())
        given.costs[answer.text] = cost_of(answer.usage)
        chronicle = question.chronicle
        given.payers[answer.text] = chronicle.key.pk
        given.processes[answer.text] = question.process.name

    def over(self, question: Question) -> None:
        """Hear that a question is answered, or given up."""
        self._under_way.pop(question, None)

    # --- every write ------------------------------------------------------------------------------

    def item(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check what is written in the place of an answer."""
        before = None if old is None else shared_answer_of(old)
        after = None if new is None else shared_answer_of(new)
        if after is None:
            self._removed(key, before, process)
        elif after.state == "leased" and (before is None or before.id != after.id):
            self._leased(key, before, after, process)
        elif after.state == "leased":
            self._leases[key].renewals = 0
            self._seen["lease on an answer renewed"] += 1
        else:
            self._answered(key, before, after, process)

    def _removed(self, key: Key, before: SharedAnswerRow | None, process: str) -> None:
        self._leases.pop(key, None)
        if before is None:
            return
        if process != TTL_SWEEPER:
            self._seen["asker gave up"] += 1
            if before.state != "leased":
                raise Broken(f"shared answers: {process} removed {before!r:.200}")
        elif before.expires_ms > self._world.now_ms():
            raise Broken(f"shared answers: {before!r:.200} vanished before its time")

    def _leased(
        self, key: Key, before: SharedAnswerRow | None, after: SharedAnswerRow, process: str
    ) -> None:
        now = self._world.now_ms()
        lapsed = before is None or before.expires_ms <= now + self._skew_ms
        if before is not None and not lapsed:
            raise Broken(f"shared answers: {process} took the lease from {before!r:.200}")
        if before is not None and before.state == "leased":
            self._check_taken_over(key, before)
        self._seen["answer lapsed"] += before is not None and before.state == "answered"
        if after.expires_ms > now + self._skew_ms + 31_000:
            raise Broken(f"shared answers: {process} took a lease until {after.expires_ms}")
        self._leases[key] = Lease(after.id, process, self._world.loop.time())
        self._taken[process, key] = self._world.loop.time()

    def _check_taken_over(self, key: Key, before: SharedAnswerRow) -> None:
        self._seen["lease taken over"] += 1
        lease = self._leases.get(key)
        for question in self._under_way:
            if question.at != key or lease is None or lease.process != question.process.name:
                continue
            self._seen["asker crashed"] += question.process.crashed
            self._seen["asker stalled"] += question.process.stalled_until > question.since
            if question.goes_on and lease.renewals < 2:
                raise Broken(
                    f"shared answers: the lease of {question.of} lapsed, and it is being asked"
                )

    def _answered(
        self, key: Key, before: SharedAnswerRow | None, after: SharedAnswerRow, process: str
    ) -> None:
        lease = self._leases.pop(key, None)
        if before is None or before.state != "leased" or lease is None or lease.id != before.id:
            raise Broken(f"shared answers: {process} answered without a lease: {before!r:.200}")
        given = self._given.get(key, Given())
        text = None if after.content is None else self._text(after.content)
        if text not in given.costs or given.processes[text] != lease.process:
            raise Broken(f"shared answers: {process} wrote {text!r:.80}, which nobody told it")
        assert after.content is not None
        self._seen["answer shared"] += 1
        self._seen["answer shared beside the table"] += after.content.blob is not None

    def _text(self, content: Content) -> str | None:
        data = content.data
        if content.blob is not None:
            found = self._world.blobs.read(content.blob.key, content.blob.size)
            data = None if found is None else found.data
        return None if data is None else unpack_value(data)["text"]

    def _sent(self, process: Process, operation: WriteOperation) -> None:
        """Hear that a process tries to renew a lease."""
        if isinstance(operation, WriteItem) and isinstance(operation.write, Update):
            lease = self._leases.get(operation.write.key)
            if lease is not None and lease.process == process.name:
                lease.renewals += 1

    # --- answers ----------------------------------------------------------------------------------

    def answered(self, context: Context, topic: str, text: str) -> None:
        """Hear what a node was answered."""
        tenant = context._visit.claimed.head.key.tenant
        if not any(
            text in given.costs
            for key, given in self._given.items()
            if key.pk.split("#")[1] == tenant
        ):
            told = f"{context.run_id} of {tenant} got {text!r:.80} about {topic}"
            self._world.loop.fail(Broken(f"shared answers: {told}, which nobody told its tenant"))

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Check the record of a question."""
        if not isinstance(event, CallFinished) or event.digest not in self._digests:
            return
        run = (chronicle.key.pk, chronicle.generation)
        if event.failure is not None:
            self._seen["shared question failed"] += 1
            if event.failure.type != "ModelUnavailable":
                raise Broken(f"shared answers: {what}, which is no error of the model")
            return
        self._recorded[(*run, event.branch, event.visit, event.digest)] += 1
        text = event.result["text"]
        given = self._given.get(answer_key(chronicle.key.tenant, self._digests[event.digest]))
        if given is None or text not in given.costs:
            raise Broken(f"shared answers: {what}, which nobody told its tenant")
        cost = given.costs[text]
        if event.by == "cache":
            self._seen["shared answer used"] += 1
            self._seen["own answer found again"] += given.payers[text] == chronicle.key.pk
            if event.spent != NO_SPENDING or event.saved != cost:
                raise Broken(f"shared answers: {what}, and another run paid {cost}")
        elif given.payers[text] != chronicle.key.pk or event.spent != cost:
            raise Broken(f"shared answers: {what}, and {given.payers[text]} paid {cost}")

    def row(self, head: Head) -> None:
        """Check a row: a run that waits for a quota has nothing reserved for that question."""
        execution = self._runs.of_row(head).execution
        held = head.owner is not None or head.needs_fence
        if head.reason != "quota" or held or execution is None:
            return
        for wait in head.waits:
            call = wait.kind.subject
            if not isinstance(wait.kind, QuotaWait) or f"model.{SAGE}" not in call:
                continue
            self._seen["shared question waits for a quota"] += 1
            strand = execution.strand(wait.branch)
            known = None if strand is None else strand.calls.get(call)
            if known is not None and known.reserved != NO_SPENDING:
                raise Broken(f"shared answers: {head.key.id} waits to ask, and reserves {known}")


def sides(kind: str) -> int:
    """Return how many equal questions a step asks side by side."""
    return 2 if kind == "twins" else 1
