"""A wait of a paused node, and the kinds of waits.

The class of a kind says everything that depends on the kind: what answers the wait, the word in
the run's row, the text for people. The engine, the row and the command line ask the class.

A new kind takes two edits: its class here, listed in `WAIT_KINDS`, and the code that begins the
wait: `VisitWaits.begin` in `engine/execution/visit_waits.py`, or `Visit.pause_until` if the node
has to ask again. `tests/model/test_wait.py` wants its text for people.

A stored wait has no field for its kind, because the names in it tell the kind. Callers cannot use
names that begin with ``%``. Kinds that only the engine uses have names of the form
``%<tag>.<subject>``, either as the signal that answers the wait or as the wait's key. `wait_kind`
reads these names, so it also reads every wait that earlier releases stored.

A node may wait for the first of several conditions. Each condition is a wait of its own, and their
keys name the group: ``%any.<digest>.<number>/<index>``. They have one deadline, and one answer,
stored under the key of the group, ends all of them: see `answer_key`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec

from holdfast.model.json_form import JsonForm

__all__ = [
    "WAIT_KINDS",
    "BackoffWait",
    "BudgetWait",
    "ChildWait",
    "MapWait",
    "QuotaWait",
    "RecheckedKind",
    "ReportedKind",
    "ResolutionWait",
    "ResourceWait",
    "ReviewWait",
    "SignalWait",
    "TimerWait",
    "UnknownWait",
    "Wait",
    "WaitKind",
    "answer_key",
    "earlier",
    "group_digest",
    "group_key",
    "is_caller_wait",
    "is_group_key",
    "is_sleep_key",
    "pause_reason",
    "shown_key",
    "signal_kind",
    "wait_kind",
]

# A row holds eight waits in at most 8 KB; the key of a call may have 256 characters.
_KEY_BYTES_MAX = 100
_ABOUT_BYTES_MAX = 200
_RESERVED = "%"
_GROUP = f"{_RESERVED}any."


class WaitKind(msgspec.Struct, frozen=True):
    """What a node waits for, and what follows from that."""

    subject: str = ""
    """Which one of its kind: the signal's name, the child's id, the call."""

    tag: ClassVar[str]
    """The name of the kind."""
    reason: ClassVar[str]
    """The reason in the row of a run that pauses for such a wait."""
    needs_recheck: ClassVar[bool] = False
    """Whether no signal answers the wait: its node has to run and ask again."""
    takes_caller_signal: ClassVar[bool] = False
    """Whether a signal that a caller sends answers the wait."""

    @property
    def signal(self) -> str | None:
        """The name of the signal that answers the wait; None if only time ends it."""
        return None

    def key(self, number: int = 1) -> str:
        """Return the key of a visit's wait; ``number`` counts the visit's waits for the same."""
        return f"{self.signal or ''}#{number}"

    def description(self, about: str) -> str:
        """Return for people what has to happen before the wait ends."""
        raise NotImplementedError


class SignalWait(WaitKind, frozen=True):
    """The node waits for a signal that a caller sends."""

    tag = "signal"
    reason = "signal"
    takes_caller_signal = True

    @property
    def signal(self) -> str:
        return self.subject

    def description(self, about: str) -> str:
        return f"the signal {self.subject}"


class TimerWait(WaitKind, frozen=True):
    """The node sleeps."""

    tag = "timer"
    reason = "timer"

    def description(self, about: str) -> str:
        return "a time"


class _ReservedKind(WaitKind, frozen=True):
    """A kind that its stored name tells: the name has the kind's tag in it."""

    @property
    def _name(self) -> str:
        return f"{_RESERVED}{self.tag}.{self.subject}"


class ReportedKind(_ReservedKind, frozen=True):
    """A kind that a signal of the engine answers."""

    reason = "signal"

    @property
    def signal(self) -> str:
        return self._name


class RecheckedKind(_ReservedKind, frozen=True):
    """A kind that no signal answers: the node asks again when the time is up, or when woken."""

    needs_recheck = True

    def key(self, number: int = 1) -> str:
        """Return the key of the wait; a long subject is hashed, so its key has another subject."""
        if not self.subject:
            return f"{_RESERVED}{self.tag}"
        if len(self._name.encode()) <= _KEY_BYTES_MAX:
            return self._name
        digest = hashlib.blake2b(self.subject.encode(), digest_size=16).hexdigest()
        return f"{_RESERVED}{self.tag}.{digest}"


class ChildWait(ReportedKind, frozen=True):
    """The node waits until a child, its subject, has ended."""

    tag = "child"

    def description(self, about: str) -> str:
        return f"the end of run {self.subject}"


class MapWait(ReportedKind, frozen=True):
    """The node waits until a map of it has ended: its subject, with the round of a retried one."""

    tag = "map"

    @classmethod
    def of(cls, map: str, round: int) -> MapWait:
        """Return the wait for a round of a map. The end of an earlier round does not answer it."""
        return cls(f"{map}@{round}" if round else map)

    @property
    def map(self) -> str:
        """The id of the map."""
        return self.subject.partition("@")[0]

    def description(self, about: str) -> str:
        return f"the end of map {self.map}"


class ResolutionWait(ReportedKind, frozen=True):
    """The node waits for a person to say what became of an ambiguous call, its subject."""

    tag = "call"
    reason = "ambiguous"

    def description(self, about: str) -> str:
        return f"a person to say what became of call {self.subject} ({about})"


class ReviewWait(ReportedKind, frozen=True):
    """The node waits for the decision of a review, whose name is its subject."""

    tag = "review"
    reason = "review"

    def description(self, about: str) -> str:
        return f"a reviewer to decide: {about}" if about else "a reviewer to decide"

    def review_id(self, run: str) -> str:
        """Return the id of the review that a run waits for."""
        return f"{run}~{self.subject}"


class BackoffWait(RecheckedKind, frozen=True):
    """The node waits for the next attempt: of the call that is its subject, or of the node."""

    tag = "retry"
    reason = "retry"

    def description(self, about: str) -> str:
        return f"another attempt at {about}" if about else "another attempt"


class QuotaWait(RecheckedKind, frozen=True):
    """The node waits until a quota has a permit for the call that is its subject."""

    tag = "quota"
    reason = "quota"

    def description(self, about: str) -> str:
        return f"the {about}"


class BudgetWait(RecheckedKind, frozen=True):
    """The node waits until the budget covers its subject: a call, or a child's share."""

    tag = "budget"
    reason = "budget"

    def description(self, about: str) -> str:
        return f"a larger budget: it {about}"


class ResourceWait(RecheckedKind, frozen=True):
    """The node waits for a worker that has what its subject names: a model or a task."""

    tag = "worker"
    reason = "unserved"

    def description(self, about: str) -> str:
        return f"a worker with {about}"


class UnknownWait(WaitKind, frozen=True):
    """The node waits for something that only a newer release knows; its subject is the name."""

    tag = "unknown"
    reason = "timer"
    needs_recheck = True

    def description(self, about: str) -> str:
        return f"{self.subject}, which only a newer release knows"


WAIT_KINDS: tuple[type[WaitKind], ...] = (
    ResolutionWait,
    ResourceWait,
    BudgetWait,
    QuotaWait,
    BackoffWait,
    ReviewWait,
    SignalWait,
    ChildWait,
    MapWait,
    UnknownWait,
    TimerWait,
)
"""All kinds. A run with several waits pauses for the reason of the kind that comes first here."""


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier one of two moments; None is no moment."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def wait_kind(key: str, signal: str | None) -> WaitKind:
    """Return the kind of a stored wait."""
    if signal is not None:
        return signal_kind(signal)
    if key.startswith(_RESERVED) and not key.startswith(_GROUP):
        return _reserved_kind(key)
    return TimerWait()


def group_digest(kinds: Sequence[WaitKind]) -> str:
    """Return what tells a group of waits from other groups of its visit: what it waits for."""
    names = "\0".join(kind.signal or "" for kind in kinds)
    return hashlib.blake2b(names.encode(), digest_size=8).hexdigest()


def group_key(digest: str, number: int) -> str:
    """Return the key of a group; ``number`` counts the visit's groups of that digest."""
    return f"{_GROUP}{digest}.{number}"


def shown_key(key: str) -> str:
    """Return the key of a wait as a history shows it: ``wait_any.<digest>#<number>/<index>``."""
    if not key.startswith(_GROUP):
        return key
    digest, _, rest = key.removeprefix(_GROUP).partition(".")
    return f"wait_any.{digest}#{rest}"


def answer_key(key: str) -> str:
    """Return the key of the answer that ends a wait: that of its group, or its own."""
    return key.partition("/")[0] if key.startswith(_GROUP) else key


def signal_kind(name: str) -> WaitKind:
    """Return the kind of the waits that a signal of that name answers."""
    return _reserved_kind(name) if name.startswith(_RESERVED) else SignalWait(name)


def is_group_key(key: str) -> bool:
    """Return whether a key is that of a wait for the first of several conditions."""
    return key.startswith(_GROUP)


def is_caller_wait(key: str) -> bool:
    """Return whether a wait with this key is for a signal that a caller sends."""
    name = key.rpartition("#")[0]
    return name != "" and signal_kind(name).takes_caller_signal


def _reserved_kind(name: str) -> WaitKind:
    tag, _, subject = name.removeprefix(_RESERVED).partition(".")
    for kind in WAIT_KINDS:
        if kind.tag == tag and issubclass(kind, _ReservedKind):
            return kind(subject)
    return UnknownWait(name)


class Wait(JsonForm, frozen=True, kw_only=True):
    """One wait of a paused node, as the run's row and the journal store it."""

    visit: int
    key: str
    """Which of the visit's waits this is."""
    branch: str = ""
    """The branch of the node; empty if the run has no branches."""
    signal: str | None = None
    """The name of the signal that answers it; None if only time ends it."""
    since_ms: int
    deadline_ms: int | None = msgspec.field(default=None, name="until_ms")
    """When a sleep ends, a recheck is due, or a wait for a signal times out."""
    stale_ms: int | None = None
    """When an answer would come too late for the run's state."""
    text: str = msgspec.field(default="", name="about")
    """What the engine says about it, for people."""
    packed_about: bytes | msgspec.UnsetType = msgspec.UNSET
    """What the node said about it, packed."""
    payload_schema: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="schema")
    """The digest of the schema of the signal's payload; unset if the wait takes any payload."""

    _hidden_in_json = frozenset({"packed_about", "payload_schema"})
    _added_to_json: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "kind": (str, "kind.tag"),
        "about": (Any, "about"),
        "description": (str, "description"),
    }

    @classmethod
    def of(
        cls,
        kind: WaitKind,
        *,
        visit: int,
        branch: str,
        key: str | None = None,
        since_ms: int,
        deadline_ms: int | None = None,
        stale_ms: int | None = None,
        about: str = "",
        packed_about: bytes | msgspec.UnsetType = msgspec.UNSET,
    ) -> Wait:
        """Return a wait of that kind; ``about`` is cut to what a row has room for."""
        return cls(
            visit=visit,
            key=kind.key() if key is None else key,
            branch=branch,
            signal=kind.signal,
            since_ms=since_ms,
            deadline_ms=deadline_ms,
            stale_ms=stale_ms,
            text=about.encode()[:_ABOUT_BYTES_MAX].decode(errors="ignore"),
            packed_about=packed_about,
        )

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any]) -> Self:
        """Return the wait of which `as_dict` returned this, without the schema of its payload.

        Raises:
            InvalidRequest: this is not the form of a wait; the error names the field.
        """
        wait = super().from_dict(shown)
        about = shown.get("about", wait.text)
        if about == wait.text:
            return wait
        return msgspec.structs.replace(wait, packed_about=msgspec.msgpack.encode(about))

    def __repr__(self) -> str:
        about = f", about={self.about!r:.200}" if self.has_about else ""
        branch = f", branch={self.branch!r}" if self.branch else ""
        return (
            f"Wait({self.kind.tag!r}, {self.description!r}, since_ms={self.since_ms}, "
            f"deadline_ms={self.deadline_ms}{branch}{about})"
        )

    @property
    def has_about(self) -> bool:
        """Whether the node said what it is about."""
        return self.packed_about is not msgspec.UNSET

    @property
    def about(self) -> Any:
        """What the node said about it with ``about=``; otherwise details for people, as text."""
        if self.packed_about is msgspec.UNSET:
            return self.text
        try:
            return msgspec.msgpack.decode(self.packed_about)
        except msgspec.MsgspecError:
            return self.text  # the row was damaged outside of the engine; the run can go on

    @property
    def kind(self) -> WaitKind:
        """What the node waits for."""
        return wait_kind(self.key, self.signal)

    @property
    def needs_recheck(self) -> bool:
        """Whether no signal answers it: its node has to run and ask again."""
        return self.signal is None and self.kind.needs_recheck

    @property
    def due_ms(self) -> int | None:
        """When it ends without an answer: its deadline or its staleness, whichever is earlier."""
        return earlier(self.deadline_ms, self.stale_ms)

    def deadline_by(self, expires_ms: int) -> int | None:
        """Return its deadline in a run that expires at ``expires_ms``.

        A wait for a signal times out at the expiry at the latest. The stored deadline stays the one
        that the node asked for, so an extension of the run gives the wait its time back. The
        deadline of a wait that began after the expiry counts as it is.
        """
        if self.deadline_ms is None or self.signal is None or self.since_ms >= expires_ms:
            return self.deadline_ms
        return min(self.deadline_ms, expires_ms)

    def due_by(self, expires_ms: int) -> int | None:
        """Return when it ends without an answer in a run that expires at ``expires_ms``."""
        return earlier(self.deadline_by(expires_ms), self.stale_ms)

    @property
    def description(self) -> str:
        """What has to happen before it ends, for people."""
        return self.kind.description(self.text)


def is_sleep_key(key: str) -> bool:
    """Return whether a wait with that key is a sleep, and not a wait for a signal."""
    return key.startswith("#") and key[1:].isdigit()


def pause_reason(waits: Iterable[Wait]) -> str:
    """Return the word in the row for why a run with these waits pauses."""
    present = {type(wait.kind) for wait in waits}
    return next((kind.reason for kind in WAIT_KINDS if kind in present), TimerWait.reason)
