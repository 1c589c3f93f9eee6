"""A toy workload for the simulator's own tests: processes that count up by compare-and-set."""

from __future__ import annotations

import sys

from holdfast.errors import (
    BlobNotFound,
    ConditionFailed,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionCancelled,
)
from holdfast.storage.blobs import BlobRef
from holdfast.storage.layout import Key
from holdfast.storage.writes import Absent, Check, Condition, Equals, Present, Put, Update
from tests.simulation.faults import FaultPlan, hostile
from tests.simulation.process import Process
from tests.simulation.world import World, simulate

COUNTERS = [Key("COUNTER", name) for name in "abc"]
DAY_SECONDS = 24 * 3600


class Counters:
    """What the processes believe to have counted."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.acknowledged = 0
        self.unknown = 0

    async def count(self, process: Process) -> None:
        """Count up, look at what others count, and leave a note and a blob now and then."""
        for turn in range(self.rounds):
            key = COUNTERS[int(process.ids.random() * len(COUNTERS))]
            try:
                await self._increment(process, key)
                await process.table.query("LIST", index="GSI1", limit=2)
                await process.table.get(key, eventual=True)
                await process.table.write(Put({"PK": "BEAT", "SK": process.name, "turn": turn}))
                if turn % 4 == 0:
                    await self._leave_note(process, key)
            except (StoreUnavailable, ConditionFailed, TransactionCancelled, BlobNotFound):
                pass
            await process.clock.sleep(process.ids.random())

    async def _increment(self, process: Process, key: Key) -> None:
        item = await process.table.get(key)
        n = item["n"] if item else 0
        condition: Condition = Equals("n", n) if item else Absent("PK")
        place = {"GSI1PK": "LIST", "GSI1SK": f"{n:08d}"}
        put = Put({"PK": key.pk, "SK": key.sk, "n": n + 1, **place}, condition, process.ids.new())
        # Until an answer comes it may have counted; a crash then leaves it at that.
        self.unknown += 1
        try:
            await process.table.write(put)
        except OutcomeUnknown:
            return
        except (StoreUnavailable, ConditionFailed):
            self.unknown -= 1
            raise
        self.unknown -= 1
        self.acknowledged += 1

    async def _leave_note(self, process: Process, key: Key) -> None:
        ref: BlobRef = await process.store.blobs.put(process.name.encode(), prefix="notes/")
        ttl = process.clock.now_ms() // 1000 + 5
        note = Key(f"NOTE#{process.name}", process.ids.new())
        try:
            await process.table.transact(
                [
                    Check(key, Present("PK")),
                    Put({"PK": note.pk, "SK": note.sk, "ttl": ttl, "blob": ref.as_item()}),
                    Update(key=Key("NOTES", "count"), add={"n": 1}, token=process.ids.new()),
                ]
            )
        except OutcomeUnknown:
            return
        await process.store.blobs.get(ref)


def counted(seed: int, plan: FaultPlan | None = None, *, rounds: int = 25) -> World:
    """Let three processes count, with crashes and restarts; return the world as it is at the end.

    What was acknowledged is in the table, and what is in the table was asked for.
    """
    counters = Counters(rounds)

    async def scenario(world: World) -> World:
        workers = [world.supervise(f"w{number}", counters.count) for number in range(3)]
        for worker in workers:
            await worker.ended
        world.plan = world.plan.evolve(crash=0, stall=0)
        # Late writes arrive, and what has expired goes.
        await world.process("main").clock.sleep(3 * DAY_SECONDS)
        total = sum(item["n"] for item in world.items("COUNTER"))
        assert counters.acknowledged <= total <= counters.acknowledged + counters.unknown
        return world

    return simulate(scenario, seed, plan or hostile())


if __name__ == "__main__":
    print(counted(int(sys.argv[1])).trace.digest())
