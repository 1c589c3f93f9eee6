"""P3, checked after every write and whenever a call sets out: what was recorded never runs again.

- No call sets out once its result is recorded; one that has set out before may arrive after that.
  Where clocks disagree a live owner may lose its run, and for as long as they do is none the wiser.
- A call has one key, unless it came to nothing, and that is recorded; a key has one set of
  arguments, so that no answer was used and then lost. A run that was begun in memory, died there
  and is begun again makes the same calls: they have the keys that they had.
- What is made at most once sets out once under each key, and only with its intent recorded; nothing
  it does happens twice; and it ends: by its own answer, by its probe, or by a person, by whom it is
  found as long as its run waits.

Calls and their records are brought together by the digest of their arguments, among which is what
names the call: run, branch, visit and number. How the kernel names it is not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.model.event import (
    CallFinished,
    CallIntended,
    CallRetried,
    CallVoided,
    Event,
    NodeFinished,
    SignalTaken,
)
from holdfast.model.execution import Execution
from holdfast.model.invocation import Answer
from holdfast.model.signals import is_open_wait
from holdfast.model.wait import ResolutionWait, Wait, signal_kind
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import call_key
from tests.simulation.chronicle import Broken, Chronicle, Chronicles

if TYPE_CHECKING:
    from holdfast.engine.execution.context import Context
    from tests.simulation.world import World

__all__ = ["RESOLUTION", "Effect", "Journey", "Once"]

RESOLUTION = "resolution"
"""The id of the signal by which a person says what became of a call."""


@dataclass
class Effect:
    """One call, as the world outside knows it: by its arguments."""

    tool: str = ""
    begun: dict[str, int] = field(default_factory=dict)
    """How often it set out, by the key that it carried."""
    intents: int = 0
    voids: int = 0
    arrivals: int = 0
    happened: int = 0
    """How often it did what it is to do."""
    given: list[Any] = field(default_factory=list)
    """All that was truly answered."""
    record: CallFinished | None = None
    """What stands in the journal, once that is a result, or a failure that lasts."""
    answered: bool = False
    """Whether a node got an answer, recorded or not."""
    in_memory: bool = False
    """Whether it was made by a run that stood nowhere, and may be begun again with all it did."""


@dataclass(eq=False)
class Journey:
    """A call under way, with who made it."""

    of: str
    effect: Effect
    key: str
    chronicle: Chronicle
    epoch: int


class Once:
    """Watches the calls of all runs."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str], *, skew_ms: int) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._skew_ms = skew_ms
        self._claimed_ms: dict[str, int] = {}
        """When each run, by its partition, was last claimed."""
        self._effects: dict[bytes, Effect] = {}
        self._arguments: dict[str, bytes] = {}
        """With which arguments each call was made, by what names it and by its key."""
        self.apart: Container[bytes] = ()
        """The digests of calls that several runs share: see `shared`."""
        self._waiting: dict[str, None] = {}
        self._in_doubt: dict[str, list[tuple[str, int]]] = {}
        """By the signal that a run waits for: which calls that is about, and how often each of them
        had come to nothing by then."""

    @property
    def is_anybody_asked(self) -> bool:
        """Whether a run waits for a person to say what became of a call."""
        return bool(self._waiting)

    # --- what happens outside ---------------------------------------------------------------------

    def sets_out(
        self, context: Context, tool: str, of: str, *, digest: bytes, key: str, once: bool
    ) -> Journey:
        """Hear that a call sets out, and check that it may."""
        head = context._visit.claimed.head
        chronicle = self._runs.of_row(head)
        row = self._runs.own_row(chronicle)
        effect = self._effect(digest)
        effect.tool = tool
        again = bool(effect.begun)
        self._seen["begun again without memory"] += again and effect.in_memory and row is not None
        effect.in_memory = effect.in_memory or row is None
        effect.begun[key] = effect.begun.get(key, 0) + 1
        journey = Journey(of, effect, key, chronicle, head.epoch)
        broken = self._check_key(journey, digest, once)
        if effect.record is not None and not self._is_unaware(journey, row):
            broken = f" in epoch {head.epoch}, and {effect.record!r:.200} is recorded"
        if broken is not None:
            # Not raised: in a node it would only make the node fail.
            self._world.loop.fail(Broken(f"P3: {tool} of {of} sets out{broken}"))
        if again:
            self._seen["made again"] += 1
            self._seen["made again though it had arrived"] += effect.arrivals > 0
            self._seen["record lost"] += effect.answered and effect.record is None
        return journey

    def _is_unaware(self, journey: Journey, row: Head | None) -> bool:
        """Return whether an owner may have lost its run before its own clock says so."""
        if row is None or row.epoch <= journey.epoch:
            return False
        since = self._world.now_ms() - self._claimed_ms[row.key.pk]
        self._seen["buried alive"] += since < self._skew_ms
        return since < self._skew_ms

    def _check_key(self, journey: Journey, digest: bytes, once: bool) -> str | None:
        effect, key = journey.effect, journey.key
        if once and effect.begun[key] > 1:
            return f" under the key {key} a second time"
        if once and sum(effect.begun.values()) > effect.intents:
            return ", and no intent is recorded"
        if len(effect.begun) > effect.voids + 1:
            return f" under the keys {[*effect.begun]}, and {effect.voids} of them are void"
        if effect.in_memory:
            return None
        for name in (journey.of, key):
            if self._arguments.setdefault(name, digest) != digest:
                return f" under the key {key}, with other arguments than before"
        return None

    def times(self, digest: bytes) -> int:
        """Return how often a call set out."""
        return sum(self._effect(digest).begun.values())

    def stands(self, digest: bytes) -> bool:
        """Return whether the result of a call is recorded."""
        return self._effect(digest).record is not None

    def uses(self, answer: Any, digest: bytes, by: str) -> None:
        """Hear that something is done with an answer: it must not be lost any more."""
        effect = self._effects[digest]
        if effect.in_memory:
            return
        if effect.record is None or _said(effect.record.result) != answer:
            self._world.loop.fail(
                Broken(f"P3: {by} uses {answer!r}, and {effect.record!r:.200} is recorded")
            )

    def arrives(self, journey: Journey, answer: Any, *, happens: bool) -> None:
        """Hear that a call reached the world, and whether that did anything."""
        effect = journey.effect
        effect.arrivals += 1
        effect.given.append(answer.text if isinstance(answer, Answer) else answer)
        effect.happened += happens
        if effect.happened > 1:
            raise Broken(f"P3: {effect.tool} of {journey.of} happened a second time")
        self._seen["arrived after its owner was lost"] += self._is_lost(journey)

    def returns(self, journey: Journey) -> None:
        """Hear that whoever made a call goes on."""
        self._seen["came back from inside a call"] += self._is_lost(journey)

    def answered(self, context: Context, digest: bytes, answer: Any, *, inside: bool) -> None:
        """Hear what a node was answered, and whether it made the call itself just now."""
        effect, head = self._effects[digest], context._visit.claimed.head
        row = self._runs.row(head.key)
        if row is None or row.epoch > head.epoch:
            return  # what an owner is told that has lost its run comes to nothing
        effect.answered = True
        self._seen["answered from its record"] += not inside
        record = effect.record
        if record is not None and record.failure is None and _said(record.result) != answer:
            self._world.loop.fail(
                Broken(f"P3: a node got {answer!r}, and {record!r:.200} is recorded")
            )

    def _is_lost(self, journey: Journey) -> bool:
        row = self._runs.own_row(journey.chronicle)
        return row is not None and row.epoch > journey.epoch

    # --- every write ------------------------------------------------------------------------------

    def row(self, before: Head | None, head: Head) -> None:
        """Check a row that was written: people find every call of which they are to tell."""
        if before is None or before.epoch != head.epoch:
            self._claimed_ms[head.key.pk] = self._world.now_ms()
        asked = self._asked(head)
        if not asked:
            self._waiting.pop(head.key.pk, None)
            return
        self._waiting[head.key.pk] = None
        self._seen["ambiguous"] += 1
        for wait in asked:
            id = str(wait.signal).rpartition(".")[2]
            # What was in doubt when the run began to wait. Its row goes on showing the wait when
            # a dead owner leaves it, who may have heard the answer and made the call again.
            self._in_doubt.setdefault(str(wait.signal), self._intended(head, wait))
            if self._world.truth.item(call_key(head.key, head.generation, id)) is None:
                raise Broken(f"P3: {head.key.id} waits for a person who does not find call {id}")

    def is_moot(self, wait: Wait, execution: Execution) -> bool:
        """Return whether a wait for a person is one no more: the tool's probe said it first."""
        strand = execution.strand(wait.branch)
        if wait.signal not in self._in_doubt or strand is None:
            return False
        return all(
            call not in strand.calls
            or strand.calls[call].over
            or strand.calls[call].voided > voided
            for call, voided in self._in_doubt[wait.signal]
        )

    def _intended(self, head: Head, wait: Wait) -> list[tuple[str, int]]:
        execution = self._runs.of_row(head).execution
        strand = None if execution is None else execution.strand(wait.branch)
        calls = {} if strand is None else strand.calls
        return [(name, call.voided) for name, call in calls.items() if call.intended]

    def _asked(self, head: Head) -> list[Wait]:
        """Return the waits of a run to be told of a call."""
        execution = self._runs.of_row(head).execution
        if head.owner is not None or head.status in ENDED or execution is None:
            return []  # what a run waits for that somebody holds, its row need not tell
        return [
            wait
            for wait in head.waits
            if isinstance(wait.kind, ResolutionWait) and is_open_wait(wait, execution)
        ]

    def put(self, events: list[Event]) -> None:
        """Hear what one record holds."""
        calls = sum(isinstance(event, CallFinished) for event in events)
        self._seen["call shared a Put"] += 0 < calls < len(events)
        self._seen["calls shared a Put"] += calls > 1

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Check one more event of a journal, before it is folded."""
        match event:
            case CallIntended():
                self._effect(event.digest).intents += 1
            case CallVoided():
                self._void(chronicle, event)
            case CallFinished() if event.digest not in self.apart:
                self._finished(event, what)
            case CallRetried():
                self._seen["call failed, to be made again"] += 1
            case SignalTaken() if event.id != RESOLUTION:
                if isinstance(signal_kind(event.name), ResolutionWait):
                    raise Broken(f"P3: {what}, which nobody said of that call")
            case NodeFinished():
                self._check_none_left(chronicle, event, what)
            case _:
                pass

    def _void(self, chronicle: Chronicle, event: CallVoided) -> None:
        execution = chronicle.execution
        strand = None if execution is None else execution.strand(event.branch)
        known = None if strand is None else strand.calls.get(event.call)
        if known is None or not known.intended:
            raise Broken(f"P3: {event!r:.200} of {chronicle.key.id}, and there was no intent")
        self._effect(known.digest).voids += 1
        self._seen[f"void by {event.by}"] += 1

    def _finished(self, event: CallFinished, what: object) -> None:
        effect = self._effects.get(event.digest)
        if effect is None or not (effect.begun or effect.intents):
            raise Broken(f"P3: {what}, which nobody called")
        if event.failure is not None:
            self._seen["call failed"] += 1
            if event.lasts:
                effect.record = event
        else:
            if effect.record is not None:
                raise Broken(f"P3: {what}, and {effect.record!r:.200} was recorded before")
            if _said(event.result) not in effect.given:
                raise Broken(f"P3: {what}, and what was answered is {effect.given}")
            effect.record = event
        if event.by:
            self._seen[f"{'done' if event.failure is None else 'failed'} by {event.by}"] += 1

    def _check_none_left(self, chronicle: Chronicle, event: NodeFinished, what: object) -> None:
        assert chronicle.execution is not None
        strand = chronicle.execution.strand(event.branch)
        left = [] if strand is None else [n for n, call in strand.calls.items() if call.intended]
        if left:
            raise Broken(f"P3: {what}, and nobody knows what became of {left}")

    def _effect(self, digest: bytes) -> Effect:
        return self._effects.setdefault(digest, Effect())


def _said(result: Any) -> Any:
    """Return what a record says; of a model's answer, its text."""
    return result["text"] if isinstance(result, dict) else result
