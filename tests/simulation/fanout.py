"""Maps, checked after every write: what lanes count, which chunks there are, what runs are told.

P1  the result of an item that its chunk recorded is never lost, and never replaced by another one
P2  each chunk counts once in a round, in one lane, with as many items as truly ended so; a chunk
    that is given away is taken by the lane that helps; one lane runs one chunk at a time
P3  an item whose result counts does not run again: see `Fanout.enters`
P6  the next chunk of a lane is begun, the run is told of the end of its map, and that once a round;
    no chunk goes on when its run has ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.engine.runs.map_chunks import chunk_id
from holdfast.model.event import BranchFailed, Event, Failed, NodeFinished, SignalTaken
from holdfast.model.map import NO_LANE, MapLane, MapSpec
from holdfast.model.wait import MapWait, signal_kind
from holdfast.records.head import ENDED, OPEN, Head
from holdfast.records.keys import RunKey
from holdfast.records.map import lane_of_item, map_of_item
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["FannedOut", "Fanout", "is_of_a_map"]

_UNREAD = ("expired", "quarantined")
"""How a chunk may have ended whose journal says nothing."""


@dataclass
class FannedOut:
    """One map, as the table truly tells it."""

    run: RunKey
    generation: str
    spec: MapSpec
    lanes: dict[int, MapLane] = field(default_factory=dict)
    credited: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """The chunks that count: in which lane, how many items succeeded there, and how many failed."""
    assigned: dict[tuple[int, int], int] = field(default_factory=dict)
    """Which lane was given which chunk, by round and number."""
    chunks: dict[RunKey, Head] = field(default_factory=dict)
    """The runs of its chunks, as they were made."""
    done: dict[int, Any] = field(default_factory=dict)
    """The results that chunks recorded, by index."""
    settled: set[int] = field(default_factory=set)
    """The indices with results in chunks that count."""
    failed: dict[RunKey, set[int]] = field(default_factory=dict)
    """The indices whose failure a chunk recorded."""
    told: set[str] = field(default_factory=set)
    """Which ends its run was told of: the ids of the signals."""
    retried: set[int] = field(default_factory=set)
    """The indices whose retry was begun."""

    @property
    def name(self) -> str:
        return f"map {self.spec.map} of {self.run.id}"

    @property
    def failures(self) -> int:
        """How many items failed in the chunks that count, of lanes that have begun the round."""
        return sum(
            failed
            for lane, _, failed in self.credited.values()
            if self.lanes[lane].round == self.spec.round
        )

    def is_complete(self) -> bool:
        """Return whether all of its lanes have ended, or one was stopped over its failures."""
        lanes = self.lanes.values()
        if len(lanes) < self.spec.lanes or any(lane.round != self.spec.round for lane in lanes):
            return False
        if any(lane.stopped == "failed" for lane in lanes):
            return True
        return all(lane.at is None and not lane.left for lane in lanes)

    def run_of(self, lane: MapLane, number: int) -> RunKey:
        """Return the key of a chunk of a lane."""
        chunk = self.spec.chunk_of(number, lane.lane, lane.round)
        return RunKey(self.run.tenant, chunk_id(self.run, self.generation, chunk))


def is_of_a_map(key: Key) -> bool:
    """Return whether a key is that of an item of a map."""
    return key.sk.startswith("FAN")


class Fanout:
    """Watches maps, and raises `Broken` at the write that breaks a promise."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str], *, skew_ms: int) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._skew_ms = skew_ms
        self.maps: dict[tuple[str, str, str], FannedOut] = {}

    def of_chunk(self, head: Head) -> FannedOut:
        """Return the map of a chunk."""
        assert head.chunk is not None
        assert head.parent is not None
        pk = RunKey(head.key.tenant, head.parent.id).pk
        found = self.maps.get((pk, head.parent.generation, head.chunk.map))
        if found is None:
            raise Broken(f"{head.key.id} is a chunk of a map that is not there")
        return found

    # --- items ------------------------------------------------------------------------------------

    def item(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check a write of an item of a map."""
        kind, generation, map, *rest = key.sk.split("#")
        what = f"{process} wrote {key.sk} of {key.pk}"
        if new is None:
            if process != TTL_SWEEPER:
                raise Broken(f"P1: {process} deleted {key.sk} of {key.pk}")
            return
        if kind == "FAN":
            spec = map_of_item(new)
            known = self.maps.get((key.pk, generation, map))
            if known is None:
                run = self._runs.of(key.pk, generation).key
                self.maps[key.pk, generation, map] = FannedOut(run, generation, spec)
            else:
                self._check_same_map(known, spec, what)
                known.spec = spec
            return
        found = self.maps.get((key.pk, generation, map))
        if found is None:
            raise Broken(f"P2: {what}, and there is no such map")
        if kind == "FANLANE":
            self._lane(found, int(rest[0]), lane_of_item(new), what)
        elif kind == "FANONE":
            found.retried.add(int(rest[0]))
            self._seen["item retried alone"] += old is None

    def _check_same_map(self, found: FannedOut, spec: MapSpec, what: str) -> None:
        before = found.spec
        fields = ("item", "total", "chunk", "lanes", "concurrency", "tolerated")
        # What the items were given is freed with the run.
        is_freed = spec.given == b"" and self._has_ended(found)
        if (not is_freed and before.given != spec.given) or any(
            getattr(before, name) != getattr(spec, name) for name in fields
        ):
            raise Broken(f"P2: {what} as {spec}, and it was {before}")
        if spec.round not in (before.round, before.round + 1) or spec.epoch < before.epoch:
            raise Broken(f"P2: {what} in round {spec.round}, after {before.round}")
        self._seen["map begun again"] += spec.round > before.round

    # --- lanes ------------------------------------------------------------------------------------

    def _lane(self, found: FannedOut, number: int, lane: MapLane, what: str) -> None:
        before = found.lanes.get(number)
        if lane == before:
            return  # it only lasts longer
        what = f"{what}: {before} became {lane}"
        found.lanes[number] = lane
        if before is None:
            self._check_begun(found, lane, what)
        elif lane.step != before.step + 1 or lane.round < before.round:
            raise Broken(f"P2: {what}, which does not follow")
        elif lane.round > before.round:
            self._check_new_round(found, before, lane, what)
        elif lane.chunks > before.chunks:
            self._check_counted(found, before, lane, what)
        elif lane.stopped and not before.stopped:
            self._check_stopped(found, before, lane, what)
        else:
            self._check_given_away(found, before, lane, what)
        totals = [credit for credit in found.credited.values() if credit[0] == number]
        sums = len(totals), sum(each[1] for each in totals), sum(each[2] for each in totals)
        if (lane.chunks, lane.succeeded, lane.failed) != sums:
            raise Broken(f"P2: {what}, and what counts in it are {sums}")

    def _check_begun(self, found: FannedOut, lane: MapLane, what: str) -> None:
        if (lane.at, lane.chunks, lane.succeeded, lane.failed) != (lane.lane, 0, 0, 0):
            raise Broken(f"P2: {what}, which is no begin")
        self._assign(found, lane, what)

    def _assign(self, found: FannedOut, lane: MapLane, what: str) -> None:
        """Note that a lane was given a chunk, which no other one has or had."""
        if lane.at is None:
            return
        holder = found.assigned.setdefault((lane.round, lane.at), lane.lane)
        if holder != lane.lane or lane.at in found.credited:
            raise Broken(f"P2: {what}, and lane {holder} was given chunk {lane.at}")
        self._seen["lane helped"] += lane.at % found.spec.lanes != lane.lane

    def _check_counted(self, found: FannedOut, before: MapLane, lane: MapLane, what: str) -> None:
        """Check that a chunk that ended counts as it ended, once."""
        number = before.at
        if number is None or (lane.last, lane.chunks) != (number, before.chunks + 1):
            raise Broken(f"P2: {what}, and ran no such chunk")
        if lane.stopped != before.stopped or number in found.credited:
            raise Broken(f"P2: {what}, and chunk {number} counts already")
        key = found.run_of(before, number)
        row = self._runs.row(key)
        chronicle = None if row is None else self._runs.of_row(row)
        execution = None if chronicle is None else chronicle.execution
        ending = None if execution is None else execution.ending
        if row is None or (ending is None and row.status not in ENDED):
            raise Broken(f"P2: {what}, and {key.id} has not ended")
        first = number * found.spec.chunk
        indices = range(first, min(first + found.spec.chunk, found.spec.total))
        succeeded = lane.succeeded - before.succeeded
        failed = lane.failed - before.failed
        done = {index for index in indices if index in found.done}
        alone = done & found.retried  # these may have come in between
        parent = self._runs.row(found.run)
        # With a run that expires, its results are deleted.
        freed = parent is None or parent.status == "expired"
        unread = row.status in _UNREAD or row.freed or freed
        if not len(done - alone) <= succeeded <= len(done) and not unread:
            raise Broken(
                f"P2: {what}, and {sorted(done)} have results; {key.id} is {row.status}, {ending}"
            )
        known = len(found.failed.get(key, set()) - done)
        if (failed < known - len(alone) and not unread) or succeeded + failed > len(indices):
            raise Broken(f"P2: {what}, and {known} failed of {len(indices)}")
        crossed = known > found.spec.tolerated
        if not before.stopped and not crossed and succeeded + failed != len(indices):
            raise Broken(f"P2: {what}, and {len(indices)} items have an end")
        if row.status == "quarantined" and succeeded < len(done):
            for index in done - alone:
                del found.done[index]  # its journal cannot be read: it runs again
        found.credited[number] = (lane.lane, succeeded, failed)
        if not unread or succeeded == len(done):
            found.settled |= done & found.done.keys()
        self._seen["chunk counted"] += 1
        self._seen["chunk counted after a stop"] += bool(before.stopped)
        self._seen["chunk with failures"] += failed > 0
        if not lane.stopped:
            self._assign(found, lane, what)
        elif lane.at is not None:
            raise Broken(f"P6: {what}: it is stopped, and goes on")

    def _check_stopped(self, found: FannedOut, before: MapLane, lane: MapLane, what: str) -> None:
        if lane.at != before.at or lane.left != before.left:
            raise Broken(f"P2: {what}, and lost chunks")
        self._seen[f"lane stopped: {lane.stopped}"] += 1
        if lane.stopped == "failed":
            others = any(each.stopped == "failed" for each in found.lanes.values() if each != lane)
            if not others and found.failures <= found.spec.tolerated:
                raise Broken(f"P2: {what}, and {found.failures} failed")
        elif not self._has_ended(found):
            raise Broken(f"P2: {what}, and its run goes on")

    def _has_ended(self, found: FannedOut) -> bool:
        chronicle = self._runs.of(found.run.pk, found.generation)
        row = self._runs.own_row(chronicle)
        if row is None or row.status in ENDED or row.retry is not None:
            return True
        execution = chronicle.execution
        return execution is not None and execution.ending is not None

    def _check_given_away(
        self, found: FannedOut, before: MapLane, lane: MapLane, what: str
    ) -> None:
        if lane.at != before.at or lane.left != before.left - 1 or lane.stopped:
            raise Broken(f"P2: {what}, which gives nothing away")
        self._seen["chunk given away"] += 1

    def _check_new_round(self, found: FannedOut, before: MapLane, lane: MapLane, what: str) -> None:
        """Check that all chunks in which something is missing run again, and no others."""
        again = {*lane.redo, *(() if lane.at is None else (lane.at,))}
        for number in list(found.credited):
            holder, succeeded, _ = found.credited[number]
            if holder != lane.lane:
                continue
            first = number * found.spec.chunk
            missing = min(found.spec.chunk, found.spec.total - first) - succeeded
            if missing and number not in again:
                raise Broken(f"P1: {what}, and {missing} items of chunk {number} are missing")
            if number in again:
                if not missing:
                    raise Broken(f"P3: {what}, and chunk {number} has all its results")
                del found.credited[number]
        if before.at is not None and before.at not in again:
            raise Broken(f"P1: {what}, and chunk {before.at} has not ended")
        if lane.stopped:
            self._seen["lane stopped before its round began"] += 1
            return
        self._assign(found, lane, what)

    # --- chunks -----------------------------------------------------------------------------------

    def row(self, before: Head | None, head: Head) -> None:
        """Check a row of a run that was written: of a chunk, and of a run that has maps."""
        if before is None and head.chunk is not None:
            self._born(head)
        if head.status in ENDED and not self._runs.is_seen_to(head) and self.owes(head):
            raise Broken(f"P6: {head.key.id} is {head.status}, and nobody sees to its maps")

    def _born(self, head: Head) -> None:
        chunk, found = head.chunk, self.of_chunk(head)
        assert chunk is not None
        if head.freed:
            self._seen["chunk cancelled before it was made"] += 1
            found.chunks[head.key] = head
            return
        parent = self._runs.own_row(self._runs.of(found.run.pk, found.generation))
        gone = parent is None or (parent.status in ENDED and not self._runs.is_seen_to(parent))
        if chunk.lane == NO_LANE:
            self._seen["chunk of one item"] += 1
            self._seen["item retried after the end of its run"] += gone
            return
        what = f"chunk {chunk.number} of lane {chunk.lane} of {found.name}"
        if gone:
            raise Broken(f"P6: {what} is an orphan: its run is {parent and parent.status}")
        if found.assigned.get((chunk.round, chunk.number)) != chunk.lane:
            raise Broken(f"P2: {what} begins, and no lane has it")
        lane = found.lanes[chunk.lane]
        if lane.round == chunk.round and lane.at != chunk.number:
            raise Broken(f"P2: {what} begins when it counts already: {lane}")
        for key, other in found.chunks.items():
            if other.chunk and other.chunk.lane == chunk.lane and self._goes_on(key):
                raise Broken(f"P2: {what} begins beside chunk {other.chunk.number}")
        found.chunks[head.key] = head
        self._seen["chunk"] += 1
        self._seen["chunk of a later round"] += chunk.round > 0

    def _goes_on(self, key: RunKey) -> bool:
        row = self._runs.row(key)
        if row is None or row.status in ENDED or row.cancel is not None:
            return False
        execution = self._runs.of_row(row).execution
        late = row.expires_ms <= self._world.now_ms() + self._skew_ms
        return not late and (execution is None or execution.ending is None)

    def owes(self, head: Head) -> bool:
        """Return whether a run that has ended owes something to a map, or to its own maps."""
        if head.chunk is not None:
            return head.chunk.lane != NO_LANE and not head.freed and self._chunk_owes(head)
        if not head.maps or head.expires_ms + self._skew_ms < self._world.now_ms():
            return False  # its chunks have expired, as well
        own = [each for each in self.maps.values() if each.run == head.key]
        return any(self._unstopped(each) for each in own if each.generation == head.generation)

    def _chunk_owes(self, head: Head) -> bool:
        found, chunk = self.of_chunk(head), head.chunk
        assert chunk is not None
        lane = found.lanes.get(chunk.lane)
        if lane is None or lane.round != chunk.round or found.spec.round != chunk.round:
            return False  # the run, which was retried, takes over what it has done
        if lane.at == chunk.number:
            return True  # it does not count yet
        if lane.last != chunk.number or not self._is_open(found):
            return False
        if lane.at is not None and not lane.stopped:
            return self._runs.row(found.run_of(lane, lane.at)) is None
        if found.failures > found.spec.tolerated and self._unstopped(found):
            return not self._is_anybody_at(found)
        complete = found.is_complete() and f"end.{found.spec.round}" not in found.told
        return complete and not self._is_anybody_at(found)

    def _is_anybody_at(self, found: FannedOut) -> bool:
        """Return whether another chunk is about to do what is left: the last one of each lane."""
        rows = [self._runs.row(key) for key in found.chunks]
        return any(row is not None and self._runs.is_seen_to(row) for row in rows)

    def _is_open(self, found: FannedOut) -> bool:
        chronicle = self._runs.of(found.run.pk, found.generation)
        row = self._runs.own_row(chronicle)
        if row is None or row.status not in OPEN or chronicle.over:
            return False
        return row.expires_ms > self._world.now_ms() + self._skew_ms

    def _unstopped(self, found: FannedOut) -> bool:
        """Return whether a chunk of a map goes on, or may yet be made."""
        if any(self._goes_on(key) for key in found.chunks):
            return True
        lanes = [lane for lane in found.lanes.values() if lane.round == found.spec.round]
        return any(not lane.stopped and (lane.at is not None or lane.left) for lane in lanes)

    # --- what chunks record, and runs are told ----------------------------------------------------

    def accepted(self, chronicle: Chronicle, name: str, id: str) -> None:
        """Hear of a signal that lies in an inbox."""
        kind = signal_kind(name)
        if not isinstance(kind, MapWait):
            return
        found = self.maps[chronicle.key.pk, chronicle.generation, kind.map]
        found.told.add(id)
        if len(found.told) > found.spec.round + 1:
            raise Broken(f"P6: {found.name} ends {sorted(found.told)}")
        self._seen["map ended"] += 1

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Hear of an event, before it is folded."""
        if isinstance(event, SignalTaken):
            self._taken(chronicle, event, what)
            return
        if not isinstance(event, NodeFinished | BranchFailed | Failed) or not event.branch:
            return
        head = self._runs.own_row(chronicle)
        if head is None or head.chunk is None or chronicle.execution is None:
            return
        found, state = self.of_chunk(head), chronicle.execution.state
        number = int(event.branch.partition("/")[0].rpartition(".")[2])
        index = state["indices"][number] if "indices" in state else state["first"] + number
        if not isinstance(event, NodeFinished):
            found.failed.setdefault(head.key, set()).add(index)
            self._seen["item failed"] += 1
            return
        if index in found.done and index not in found.retried:
            raise Broken(f"P3: {what}, and item {index} of {found.name} had a result")
        found.done[index] = event.delta[str(index)]
        self._seen["item done"] += 1

    def _taken(self, chronicle: Chronicle, event: SignalTaken, what: object) -> None:
        kind = signal_kind(event.name)
        if not isinstance(kind, MapWait):
            return
        found, told = self.maps[chronicle.key.pk, chronicle.generation, kind.map], event.payload
        self._seen[f"map {told['status']}"] += 1
        strand = None if chronicle.execution is None else chronicle.execution.strand(event.branch)
        round = found.spec.round if strand is None else strand.notes.get(kind.map)
        if event.id != f"end.{round}":
            raise Broken(f"P2: {what}, and {found.name} is in round {round}")
        if round != found.spec.round:
            return  # it was retried since
        succeeded = sum(each[1] for each in found.credited.values())
        if told["status"] == "finished":
            everything = set(found.credited) == set(range(found.spec.chunks))
            truly = (succeeded, found.failures)
            if not everything or (told["succeeded"], told["failed"]) != truly:
                raise Broken(f"P2: {what}, and truly that is {truly} of {found.spec.total}")
            if found.failures > found.spec.tolerated:
                raise Broken(f"P2: {what}, and {found.failures} failed")
        elif found.failures <= found.spec.tolerated:
            raise Broken(f"P2: {what}, and {found.failures} failed")

    # --- items that run ---------------------------------------------------------------------------

    def enters(self, head: Head, index: int) -> Broken | None:
        """Hear that an item of a chunk begins; return what that breaks."""
        row = self._runs.row(head.key)
        if row is None or row.epoch != head.epoch or row.status in ENDED:
            return None  # its owner has lost the run, and will learn that
        execution = self._runs.of_row(row).execution
        if execution is not None and execution.ending is not None:
            return None  # it was cancelled, as its owner learns at its next write
        found = self.of_chunk(head)
        # Who retries an item alone, and then the run, has asked for it twice.
        if index in found.settled - found.retried:
            return Broken(f"P3: item {index} of {found.name} runs again in {head.key.id}")
        return None

    def running(self, active: Iterable[Head]) -> list[Head]:
        """Return those of the chunks whose owners hold them still."""
        found: list[Head] = []
        for head in active:
            row = self._runs.row(head.key)
            if row is not None and row.epoch == head.epoch and row.owner == head.owner:
                found.append(head)
        return found

    # --- at rest ----------------------------------------------------------------------------------

    def settled(self) -> None:
        """Check that nothing of any map was left undone."""
        for found in self.maps.values():
            row = self._runs.row(found.run)
            if row is None or row.generation != found.generation:
                continue
            if going := [key.id for key in found.chunks if self._goes_on(key)]:
                raise Broken(f"P6: {found.name} has ended with its run, and {going} go on")
            if row.status == "finished" and not found.told:
                raise Broken(f"P6: {found.name} was never told of, and its run is finished")
