"""What each run has truly gone through: its journal, folded along as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.model.execution import Execution
from holdfast.model.wait import Wait
from holdfast.records.head import ENDED, Head, head_of
from holdfast.records.keys import RunKey
from holdfast.storage.item import Item

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Broken", "Chronicle", "Chronicles"]


SOON_MS = 300_000
"""A run that owes something is due at once, or, where that went wrong, this much later."""


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Chronicle:
    """One generation of a run, as its journal truly tells it."""

    key: RunKey
    generation: str
    execution: Execution | None = None
    """Never taken from a snapshot: snapshots are compared with it."""
    position: int = 1
    fence: int = 0
    performed: int = 0
    """The last epoch in which something was performed."""
    written: dict[int, str] = field(default_factory=dict)
    """Who wrote which position: the token of the write."""
    early: list[tuple[Item, str]] = field(default_factory=list)
    """Records that stood before the row, each with who wrote it."""
    snapshots: set[int] = field(default_factory=set)
    branches: set[str] = field(default_factory=set)
    """Every branch that ever was."""
    to_be_freed: set[str] = field(default_factory=set)
    """What lay there when the run expired."""
    accepted: dict[tuple[str, str], int] = field(default_factory=dict)
    """The signals in the inbox, and when they were accepted."""
    stamps: dict[tuple[str, str], str] = field(default_factory=dict)
    """The signals in the inbox, and the tokens by which they are ordered."""
    put_by: dict[str, str] = field(default_factory=dict)
    """The tokens of signals, and which process put them into the inbox."""
    deleted: set[str] = field(default_factory=set)
    """The tokens of what was deleted, and the keys of signals: a network that repeats a write, or
    carries it out late, may bring it back."""
    seen: dict[int, set[tuple[str, str]]] = field(default_factory=dict)
    """The signals that lay there when the run was claimed, by the epoch of that claim: that owner
    knows of them. What an earlier one wrote may arrive after it, and follows from fewer."""
    acknowledged: set[tuple[str, str]] = field(default_factory=set)
    """The signals whose sender was told that they count."""
    waits: tuple[Wait, ...] = ()
    """What the run waited for when it expired."""
    moved_ms: int = 0
    """When something last happened to the run."""
    acknowledged_start: bool = False
    """Whether somebody was told that it is started."""
    begun: bool = False
    """Whether its first node was entered."""
    lost: int = 0
    """How many workers in a row died while they held it."""
    over: bool = False
    """Whether it has ever ended; one that failed may have been retried since."""


class Chronicles:
    """All runs that ever were, and the rows that truly stand."""

    def __init__(self, world: World, *, skew_ms: int) -> None:
        self._world = world
        self._skew_ms = skew_ms
        self._runs: dict[tuple[str, str], Chronicle] = {}
        self._read: dict[str, tuple[Item, Head]] = {}
        """By partition, the last item that was read as a row, and what it says."""

    def row(self, key: RunKey) -> Head | None:
        """Return the row of whatever run has that id now."""
        item = self._world.truth.row(key.pk)
        return None if item is None else self.read(item)

    def read(self, item: Item) -> Head:
        """Return what a row of the truth says. The same item is never changed, only replaced."""
        known = self._read.get(item["PK"])
        if known is None or known[0] is not item:
            known = self._read[item["PK"]] = (item, head_of(item))
        return known[1]

    def own_row(self, chronicle: Chronicle) -> Head | None:
        """Return the row of this very run, None where it is gone."""
        head = self.row(chronicle.key)
        return head if head is not None and head.generation == chronicle.generation else None

    def of(self, pk: str, generation: str) -> Chronicle:
        """Return the chronicle of a run, a new one where nothing was heard of it."""
        found = self._runs.get((pk, generation))
        if found is None:
            _, tenant, id = pk.split("#")
            found = self._runs[pk, generation] = Chronicle(RunKey(tenant, id), generation)
        return found

    def of_row(self, head: Head) -> Chronicle:
        """Return the chronicle of the run that a row is of."""
        return self.of(head.key.pk, head.generation)

    def all(self) -> Iterator[Chronicle]:
        """Yield every chronicle."""
        return iter(self._runs.values())

    def is_seen_to(self, head: Head) -> bool:
        """Return whether a worker holds a run, or will take it soon."""
        if head.index_key is None or not head.index_key.pk.startswith("DUE#"):
            return head.index_key is not None
        return head.index_key.due_parts()[0] <= self._world.now_ms() + SOON_MS + self._skew_ms

    def has_left(self, chronicle: Chronicle) -> bool:
        """Return whether nobody has to wait for a run any more: it has ended, or is gone."""
        if chronicle.over:
            return True
        head = self.own_row(chronicle)
        return head is None or head.status in ENDED or head.ttl * 1000 <= self._world.now_ms()
