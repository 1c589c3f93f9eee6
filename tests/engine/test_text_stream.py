"""Text as it comes: heard at once here, soon elsewhere, and by nobody twice or in part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, hours
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.engine.kernel.spool import ITEM_BYTES_MAX, WRITE_SECONDS
from holdfast.errors import InvalidQuery, JournalDamaged, RunNotFound, StoreUnavailable
from holdfast.model.run import TextPiece
from holdfast.records.head import Head, head_of
from holdfast.records.keys import SpoolKey, parsed_text_key, text_key, text_range
from holdfast.storage import Key, Prefix, Table, Update
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    Gate,
    House,
    StepClock,
    calls_of,
    chain,
    item_of_head,
    journal_items,
    store_of,
    tenant_key,
    units_of,
)

GRAPH = chain("g", 1, lambda n: {})
RUN = "doc-42"
NEVER_SECONDS = 10_000
DAY = 24 * 3600


async def started(hf: Holdfast, **options: Any) -> Head:
    """Start a run that nobody goes on with, so that the test is its worker."""
    await hf.start(GRAPH, id=RUN, **options)
    return head_of(await item_of_head(hf, RUN))


def held(head: Head, epoch: int) -> Head:
    """Return the row as a later owner has it."""
    return msgspec.structs.replace(head, epoch=epoch)


def writer(hf: Holdfast, head: Head, call: str = "c", name: str = "small") -> TokenWriter:
    return speaker(hf, head, [True, False], call=call, name=name)


def speaker(
    hf: Holdfast, head: Head, owned: list[bool], call: str = "c", name: str = "small"
) -> TokenWriter:
    """Return a writer of one whose lease holds, or is lost, as the two values tell."""
    held: dict[str, Any] = {"is_claimed": lambda: owned[0], "is_lost": lambda: owned[1]}
    return TokenWriter(hf._kernel, head, **held, call=call, name=name)


async def text_items(hf: Holdfast) -> list[dict[str, Any]]:
    head = head_of(await item_of_head(hf, RUN))
    where = text_range(head.generation, SpoolKey(0, ""), 0)
    return [item async for item in store_of(hf).table.query_all(head.key.pk, where)]


async def there(hf: Holdfast, after: str | None = None) -> list[TextPiece]:
    """Return what can be read by now."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [piece async for piece in hf.run(RUN).tokens(after=after, follow=False)]


async def all_of(hf: Holdfast, after: str | None = None) -> list[TextPiece]:
    """Return what comes until the run has ended."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [piece async for piece in hf.run(RUN).tokens(after=after)]


async def written(hf: Holdfast, head: Head) -> None:
    """Move the clock on until all that was said is in the table, and forgotten if it is over."""
    clock = hf._kernel.clock
    assert isinstance(clock, StepClock)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while (spool := hf._kernel.spools.get(head.key)) is not None:
            if spool._open_streams and spool._first_unwritten() is None:
                return
            clock.advance(WRITE_SECONDS)
            await store_of(hf).table.get(head.key.head)


async def next_of(pieces: AsyncIterator[TextPiece]) -> TextPiece:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return await anext(pieces)


def told(pieces: Iterable[TextPiece], before: dict[str, str] | None = None) -> dict[str, str]:
    """Return what a screen shows that does as the pieces say."""
    shown = dict(before or {})
    for piece in pieces:
        shown[piece.call] = ("" if piece.restarted else shown.get(piece.call, "")) + piece.text
    return shown


@pytest.fixture
def asks_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows hears, or waits for ever."""
    monkeypatch.setattr("holdfast.engine.history.text_stream._POLL_FIRST_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr("holdfast.engine.history.text_stream._POLL_SECONDS_MAX", NEVER_SECONDS)


# --- following ------------------------------------------------------------------------------------


async def test_what_is_said_in_one_process_is_followed_in_another(either: House) -> None:
    one, other = either.open(), either.open()
    head = await started(one)
    following = asyncio.create_task(all_of(other))
    async with writer(one, head) as speaking:
        for word in ("so ", "be ", "it"):
            speaking.emit(word)
    await one.run(RUN).cancel()
    pieces = await following
    assert "".join(piece.text for piece in pieces) == "so be it"
    assert [piece.last for piece in pieces] == [*[False] * (len(pieces) - 1), True]
    assert {(piece.call, piece.name) for piece in pieces} == {("c", "small")}
    assert not any(piece.restarted for piece in pieces)
    assert await all_of(one) == await there(other)


@pytest.mark.usefixtures("asks_never")
async def test_pieces_that_are_not_joined_are_the_same_for_all_readers(either: House) -> None:
    one, other = either.open(), either.open()
    head = await started(one)
    async with writer(one, head) as speaking:
        for word in ("so ", "be ", "it"):
            speaking.emit(word)
        here = [piece async for piece in one.run(RUN).tokens(follow=False, joined=False)]
    await one.run(RUN).cancel()
    stored = [piece async for piece in other.run(RUN).tokens(joined=False)]
    assert [piece.text for piece in here] == ["so ", "be ", "it"]
    assert stored[:3] == here
    assert "".join(piece.text for piece in stored) == "so be it"
    rest = other.run(RUN).tokens(after=here[0].cursor, joined=False)
    assert "".join([piece.text async for piece in rest]) == "be it"


async def test_here_each_word_is_heard_at_once_and_without_the_store(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with aclosing(hf.run(RUN).tokens()) as pieces, writer(hf, head) as speaking:
        speaking.emit("first")
        assert (await next_of(pieces)).text == "first"
        await house.clock.asleep(1)  # the first word is in the table by now
        asked = calls_of(hf, "text", "head")
        for number in range(100):
            speaking.emit(str(number))
            assert (await next_of(pieces)).text == str(number)
        assert calls_of(hf, "text", "head") == asked
        await speaking.finish()
        piece = await next_of(pieces)
        assert (piece.text, piece.last) == ("", True)


async def test_text_is_written_at_most_every_quarter_of_a_second(either: House) -> None:
    hf = either.open()
    head = await started(hf)
    async with writer(hf, head, "a") as one, writer(hf, head, "b") as other:
        for wave in range(4):
            for _ in range(50):
                one.emit("x")
                other.emit("y")
            await either.clock.asleep(1)
            assert calls_of(hf, "text") == {("text", "write"): wave + 1}
            either.clock.advance(WRITE_SECONDS)
    # The end does not wait. Beyond the first, all streams share what is written.
    assert calls_of(hf, "text")[("text", "write")] in (5, 6)
    assert units_of(hf, "text").writes <= 6
    assert told(await there(hf)) == {"a": "x" * 200, "b": "y" * 200}


async def test_what_is_said_while_something_is_written_waits_for_its_turn(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    hf._kernel.texts = slow = Slow(hf._kernel.texts)  # type: ignore[assignment]
    speaking = writer(hf, head)
    speaking.emit("one ")
    await slow.gate.waited_at(1)
    speaking.emit("two")
    slow.gate.open()
    await house.clock.asleep(1)
    assert calls_of(hf, "text") == {("text", "write"): 1}
    await speaking.finish()
    assert calls_of(hf, "text") == {("text", "write"): 2}


@pytest.mark.usefixtures("asks_never")
async def test_those_who_follow_the_events_do_not_hear_every_word(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with aclosing(hf.run(RUN).events()) as entries:
        waiting = asyncio.ensure_future(anext(entries))
        while ("journal", "query") not in calls_of(hf, "journal"):
            await store_of(hf).table.get(head.key.head)
        async with writer(hf, head) as speaking:
            speaking.emit("x")
            await house.clock.asleep(1)
            asked = calls_of(hf, "head", "journal")
            for _ in range(100):
                speaking.emit("x")
                await house.clock.sleep(0)
            assert calls_of(hf, "head", "journal") == asked
        await hf.run(RUN).cancel()
        assert (await waiting).kind == "cancelled"


@pytest.mark.usefixtures("asks_never")
async def test_news_that_is_none_for_the_text_is_asked_about_once(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with aclosing(hf.run(RUN).tokens()) as pieces:
        waiting = asyncio.ensure_future(anext(pieces))
        for reads in (1, 2):
            for _ in range(10):
                await store_of(hf).table.get(head.key.head)
            assert calls_of(hf, "text") == {("text", "query"): reads}
            hf._kernel.notifier.notify(head.key)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_run_that_ends_while_somebody_listens_ends_that(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    speaking = writer(hf, head)
    following = asyncio.create_task(all_of(hf))
    speaking.emit("half an ans")
    await house.clock.asleep(1)
    speaking.abandon()
    await hf.run(RUN).cancel()
    pieces = await following
    assert told(pieces) == {"c": "half an ans"}
    assert not any(piece.last for piece in pieces)


async def test_who_follows_elsewhere_asks_for_the_row_only_when_it_is_quiet(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = house.open(), house.open()
    head = await started(one)
    async with writer(one, head) as speaking:
        speaking.emit("x")
        await house.clock.asleep(1)
        async with aclosing(other.run(RUN).tokens()) as pieces:
            assert (await next_of(pieces)).text == "x"
            assert calls_of(other, "head") == {("head", "get"): 1}
            house.clock.advance(WRITE_SECONDS)
            speaking.emit("y")
            await house.clock.asleep(1)
            assert (await next_of(pieces)).text == "y"
            assert calls_of(other, "head") == {("head", "get"): 1}
            assert calls_of(other, "text") == {("text", "query"): 2}


# --- nothing twice, nothing lost ------------------------------------------------------------------


async def test_who_goes_on_after_any_cursor_sees_the_rest_once(either: House) -> None:
    one, other = either.open(), either.open()
    head = await started(one)
    random = Random(7)
    heard: list[TextPiece] = []
    async with aclosing(one.run(RUN).tokens()) as pieces:
        # Owners after each other, each with streams side by side, some of which come to nothing.
        for epoch in (2, 3, 5):
            calls = random.sample("abcd", 3)
            speaking = {call: writer(one, held(head, epoch), call) for call in calls}
            for number in range(40):
                call = random.choice(calls)
                speaking[call].emit(f"{epoch}{call}{number} ")
                heard.append(await next_of(pieces))
                if random.random() < 0.2:
                    await written(one, head)
            for call in calls:
                if random.random() < 0.5:
                    await speaking[call].finish()
                    heard.append(await next_of(pieces))
                else:
                    speaking[call].abandon()
            await written(one, head)
    whole = told(heard)
    assert told(await there(other)) == whole
    assert any(piece.restarted for piece in heard)
    for at, piece in enumerate(heard):
        for hf in (one, other):
            rest = await there(hf, piece.cursor)
            assert told(rest, told(heard[: at + 1])) == whole
    assert await there(other, heard[-1].cursor) == []


async def test_a_call_that_is_made_again_elsewhere_voids_what_came_before(either: House) -> None:
    one, other, third = either.open(), either.open(), either.open()
    head = await started(one)
    dead = writer(one, head)
    dead.emit("The answer is 4")
    await either.clock.asleep(1)
    seen = await there(third)
    assert told(seen) == {"c": "The answer is 4"}
    async with writer(other, held(head, 2)) as again:
        again.emit("It is ")
        again.emit("42.")
    rest = await there(third, seen[-1].cursor)
    assert rest[0].restarted
    assert told(rest, told(seen)) == {"c": "It is 42."}
    # What the dead still says comes before: it changes nothing.
    dead.emit("3, or so")
    either.clock.advance(WRITE_SECONDS)
    await either.clock.asleep(1)
    assert await there(third, rest[-1].cursor) == []
    assert told(await there(third)) == {"c": "It is 42."}
    assert told(await there(third, seen[-1].cursor), told(seen)) == {"c": "It is 42."}


async def test_one_that_lost_the_run_and_got_it_again_speaks_behind_all_others(
    house: House,
) -> None:
    one, other = house.open(), house.open()
    head = await started(one)
    lost = writer(one, head)
    lost.emit("first")
    async with writer(other, held(head, 2)) as speaking:
        speaking.emit("second")
    # The one that it began before is still under way, in the same process.
    async with writer(one, held(head, 3)) as speaking:
        speaking.emit("third")
        lost.emit("!")
        assert told(await there(one)) == {"c": "third"}
        await lost._spool.flush()
        lost.abandon()
        assert one._kernel.spools.get(head.key) is not None
    assert told(await there(other)) == {"c": "third"}


async def test_who_hears_an_owner_that_lost_the_run_is_told_what_the_next_one_says(
    house: House,
) -> None:
    one, other = house.open(), house.open()
    head = await started(one)
    lost = writer(one, head)
    lost.emit("It may b")
    async with aclosing(one.run(RUN).tokens()) as pieces:
        first = await next_of(pieces)
        # The next owner answers, and the run ends, before the first one knows that it lost the run.
        await store_of(one).table.write(Update(key=head.key.head, set={"epoch": head.epoch + 1}))
        async with writer(other, held(head, head.epoch + 1)) as speaking:
            speaking.emit("It is so.")
        await other.run(RUN).cancel()
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            rest = [piece async for piece in pieces]
    assert told([first, *rest]) == {"c": "It is so."}
    lost.abandon()


@pytest.mark.usefixtures("asks_never")
async def test_another_attempt_in_the_same_process_voids_the_one_before(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with aclosing(hf.run(RUN).tokens()) as pieces:
        for attempt in ("one", "two"):
            with suppress(ConnectionError):
                async with writer(hf, head) as speaking:
                    speaking.emit(attempt)
                    piece = await next_of(pieces)
                    assert (piece.text, piece.restarted) == (attempt, attempt == "two")
                    raise ConnectionError
        async with writer(hf, head, "another") as speaking:
            speaking.emit("x")
            assert not (await next_of(pieces)).restarted


async def test_after_a_cursor_an_answer_that_goes_on_is_not_void(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with writer(hf, head) as speaking:
        speaking.emit("one ")
        await house.clock.asleep(1)
        (piece,) = await there(hf)
        speaking.emit("two")
    (rest,) = await there(hf, piece.cursor)
    assert (rest.text, rest.last, rest.restarted) == ("two", True, False)


async def test_who_is_far_behind_reads_the_table(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with aclosing(hf.run(RUN).tokens()) as pieces, writer(hf, head) as speaking:
        speaking.emit("0 ")
        got = [await next_of(pieces)]
        for number in range(1, 200):
            speaking.emit(f"{number} ")
            await house.clock.asleep(1)
            house.clock.advance(WRITE_SECONDS)
        spool = hf._kernel.spools.get(head.key)
        assert spool is not None
        assert spool.oldest > 100  # it is not all kept in memory
        while not got[-1].text.endswith("199 "):
            got.append(await next_of(pieces))
    assert "".join(piece.text for piece in got).split() == [str(number) for number in range(200)]


# --- what is said ---------------------------------------------------------------------------------


async def test_much_at_once_goes_into_several_items(either: House) -> None:
    one, other = either.open(), either.open()
    head = await started(one)
    much = "".join(Random(3).choices("aäß中🙂", k=300_000))
    async with writer(one, head) as speaking:
        speaking.emit(much)
        assert told(await there(one)) == {"c": much}
        await written(one, head)
        assert speaking._spool._buffered_bytes <= 256 * 1024
    assert told(await there(other)) == {"c": much}
    items = await text_items(one)
    assert len(items) > len(much.encode()) / ITEM_BYTES_MAX
    assert max(len(item["data"]) for item in items) <= ITEM_BYTES_MAX + 100


async def test_of_the_parts_of_much_text_one_is_the_first_and_one_the_last(house: House) -> None:
    hf = house.open()
    speaking = writer(hf, await started(hf))
    speaking._spool.append(0, "x" * 60_000, first=True, last=True)
    flags = [(entry.first, entry.last) for _, _, entry in speaking._spool.entries_since(0, 0)]
    assert flags == [(True, False), (False, False), (False, True)]


async def test_half_a_surrogate_pair_is_no_trouble(house: House) -> None:
    hf = house.open()
    async with writer(hf, await started(hf)) as speaking:
        speaking.emit("a\ud83db")
    assert told(await there(hf)) == {"c": "a?b"}


async def test_an_answer_without_text_has_an_end(house: House) -> None:
    hf = house.open()
    async with writer(hf, await started(hf)) as speaking:
        speaking.emit("")
    (piece,) = await there(hf)
    assert (piece.text, piece.last) == ("", True)


async def test_where_nothing_is_said_nothing_is_written(house: House) -> None:
    hf = house.open()
    writer(hf, await started(hf)).abandon()
    assert await there(hf) == []
    assert calls_of(hf, "text") == {("text", "query"): 1}


async def test_nothing_is_left_in_memory_nor_asleep(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with writer(hf, head) as speaking:
        speaking.emit("x")
    late = writer(hf, head)
    late.emit("y")
    late.abandon()
    late.emit("never")
    await late.finish()
    await written(hf, head)
    assert house.clock.sleeping == 0
    assert hf._kernel.spools.notifier._listeners == {}
    assert "".join(piece.text for piece in await there(hf)) == "xy"


# --- how long it is kept --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires", "kept"), [(hours(1), DAY), (hours(24 * 30), DAY)], ids=["short", "long"]
)
async def test_text_is_kept_for_a_day(house: House, expires: Any, kept: int) -> None:
    hf = house.open()
    head = await started(hf, expires=expires)
    async with writer(hf, head) as speaking:
        speaking.emit("x")
    assert {item["ttl"] for item in await text_items(hf)} == {house.clock.now_ms() // 1000 + kept}


async def test_text_is_never_kept_longer_than_its_run(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    soon = msgspec.structs.replace(head, ttl=house.clock.now_ms() // 1000 + 10)
    async with writer(hf, soon) as speaking:
        speaking.emit("x")
    assert {item["ttl"] for item in await text_items(hf)} == {soon.ttl}


async def test_text_goes_with_what_an_expired_run_kept_and_costs_no_further_request(
    either: House,
) -> None:
    hf = either.open()
    head = await started(hf, expires=hours(1))
    async with writer(hf, head) as speaking:
        speaking.emit("secret")
    either.clock.advance(3601)
    async with either.worker(hf, GRAPH) as worker:
        await either.quiet(worker)
    assert (await hf.run(RUN).get()).status == "expired"
    # One to resume it, as far as that goes, and one to free it, as for any other run.
    assert calls_of(hf, "journal", "text")[("journal", "query")] <= 2
    assert ("text", "query") not in calls_of(hf, "text")
    generation = (await item_of_head(hf, RUN))["generation"]
    left = store_of(hf).table.query_all(tenant_key(RUN).pk, Prefix(f"J#{generation}#"))
    assert [item async for item in left if not item.get("stays")] == []
    with pytest.raises(RunNotFound):
        await there(hf)


async def test_an_owner_that_lost_the_run_writes_no_more_of_its_text(house: House) -> None:
    """The next owner may have freed the run by then."""
    hf = house.open()
    head = await started(hf)
    owned = [True, False]
    speaking = speaker(hf, head, owned)
    speaking.emit("one ")
    await house.clock.asleep(1)
    speaking.emit("two")
    owned[:] = [False, True]
    house.clock.advance(WRITE_SECONDS)
    await speaking.finish()
    assert told(await there(hf)) == {"c": "one "}
    assert len(await text_items(hf)) == 1
    assert hf._kernel.spools.get(head.key) is None


@pytest.mark.parametrize("when", ["before it writes", "while it writes"])
@pytest.mark.parametrize("becomes", ["renewed", "lost"])
async def test_past_the_end_of_a_lease_text_waits_until_it_is_renewed_or_lost(
    house: House, when: str, becomes: str
) -> None:
    """The renewal was sent in time, and its answer came late to a process that stood still."""
    hf = house.open()
    head = await started(hf)
    hf._kernel.texts = failing = Failing(hf._kernel.texts, 0)  # type: ignore[assignment]
    owned = [True, False]
    speaking = speaker(hf, head, owned)
    speaking.emit("one ")
    await house.clock.asleep(1)
    speaking.emit("two")
    if when == "while it writes":
        failing.times, failing.failed = 1, lambda: owned.__setitem__(0, False)
    else:
        owned[0] = False
    finishing = asyncio.ensure_future(speaking.finish())
    for _ in range(3):
        assert len(await text_items(hf)) == 1  # and on the way all tasks have their turns
        assert not finishing.done()
        await house.clock.asleep(1)
        house.clock.advance(WRITE_SECONDS)
    owned[:] = [True, False] if becomes == "renewed" else [False, True]
    await advancing(house.clock, finishing, WRITE_SECONDS)
    await finishing
    pieces = await there(hf)
    assert told(pieces) == {"c": "one two" if becomes == "renewed" else "one "}
    assert pieces[-1].last == (becomes == "renewed")


@pytest.mark.parametrize("renewed", [True, False])
async def test_text_waits_half_a_minute_for_a_lease_that_no_worker_renews(
    house: House, renewed: bool
) -> None:
    """The worker is gone, and the run neither lost nor held; or the process only stood still."""
    hf = house.open()
    head = await started(hf)
    owned = [True, False]
    speaking = speaker(hf, head, owned)
    speaking.emit("one ")
    await house.clock.asleep(1)
    speaking.emit("two")
    owned[0] = False
    finishing = asyncio.ensure_future(speaking.finish())
    await house.clock.asleep(2)
    house.clock.advance(29)
    await house.clock.asleep(1)
    assert not finishing.done()
    owned[0] = renewed
    house.clock.advance(2)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        await finishing
    pieces = await there(hf)
    assert told(pieces) == {"c": "one two" if renewed else "one "}
    assert pieces[-1].last == renewed
    assert hf._kernel.spools.get(head.key) is None


async def test_before_a_run_is_freed_the_fate_of_all_its_text_is_known(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    hf._kernel.texts = slow = Slow(hf._kernel.texts)  # type: ignore[assignment]
    speaking = writer(hf, head)
    speaking.emit("one ")
    await slow.gate.waited_at(1)
    speaking.emit("two")
    closing = asyncio.ensure_future(hf._kernel.spools.close(head.key, head.generation))
    await house.clock.sleep(0)
    assert not closing.done()
    slow.gate.open()
    await closing
    speaking.abandon()
    house.clock.advance(WRITE_SECONDS)
    assert len(await text_items(hf)) == 1


async def test_who_resumes_a_run_does_not_read_its_text(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with writer(hf, head) as speaking:
        speaking.emit("x" * 50_000)
    assert await journal_items(hf, RUN) == []
    assert len(await text_items(hf)) == 1


# --- what goes wrong ------------------------------------------------------------------------------


async def test_what_is_not_a_place_in_the_text_is_refused(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    async with writer(hf, head) as speaking:
        speaking.emit("x")
    (piece,) = await there(hf)
    foreign = piece.cursor.replace(head.generation, hf._kernel.ids.new())
    for after in ("", "x", 7, foreign, f"{head.generation}.1.0"):
        with pytest.raises(InvalidQuery):
            await there(hf, after)  # type: ignore[arg-type]


async def test_the_text_of_another_tenant_is_not_there(house: House) -> None:
    hf = house.open()
    async with writer(hf, await started(hf)) as speaking:
        speaking.emit("x")
        with pytest.raises(RunNotFound):
            await next_of(hf.run(RUN, tenant="acme").tokens())


async def test_text_that_cannot_be_read_is_said_to_be_damaged(house: House) -> None:
    hf = house.open()
    async with writer(hf, await started(hf)) as speaking:
        speaking.emit("x")
    (item,) = await text_items(hf)
    table = store_of(hf).table
    await table.write(Update(key=Key(item["PK"], item["SK"]), set={"data": b"\x00\x01"}))
    with pytest.raises(JournalDamaged):
        await there(hf)


class Failing:
    """A table that takes nothing, as often as it is told."""

    def __init__(self, table: Table, times: int) -> None:
        self._table = table
        self.times = times
        self.failed: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def write(self, write: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            self.failed()
            raise StoreUnavailable("not now")
        return await self._table.write(write, **options)


class Slow:
    """A table that writes only once it is let."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.gate = Gate()

    async def write(self, write: Any, **options: Any) -> Any:
        await self.gate.pass_through()
        return await self._table.write(write, **options)


async def advancing(clock: StepClock, task: asyncio.Future[Any], seconds: float) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not task.done():
            asleep = asyncio.ensure_future(clock.asleep(1))
            await asyncio.wait({asleep, task}, return_when=asyncio.FIRST_COMPLETED)
            asleep.cancel()
            clock.advance(seconds)


async def test_a_store_that_stumbles_loses_nothing(house: House) -> None:
    hf = house.open()
    head = await started(hf)
    hf._kernel.texts = failing = Failing(hf._kernel.texts, 3)  # type: ignore[assignment]
    speaking = writer(hf, head)
    for word in ["so", "be", "it"]:
        speaking.emit(word)
    finishing = asyncio.ensure_future(speaking.finish())
    await advancing(house.clock, finishing, 0.05)
    assert failing.times == 0
    assert told(await there(hf)) == {"c": "sobeit"}


async def test_a_store_that_is_down_ends_the_text_and_not_the_call(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    hf = house.open()
    head = await started(hf)
    table = hf._kernel.texts
    hf._kernel.texts = Failing(table, 10_000)  # type: ignore[assignment]
    beside = writer(hf, head, "beside")
    speaking = writer(hf, head)
    speaking.emit("lost")
    finishing = asyncio.ensure_future(speaking.finish())
    await advancing(house.clock, finishing, 1)
    await finishing
    assert f"{head.key.log_name}: streamed text could not be written" in caplog.text
    hf._kernel.texts = table
    async with writer(hf, head, "later") as again:
        again.emit("heard")
        beside.emit("lost, too")
        beside.abandon()
    assert hf._kernel.spools.get(head.key) is None
    assert told(await there(hf)) == {"later": "heard"}


async def test_who_is_cancelled_while_it_finishes_leaves_the_rest_to_be_written(
    house: House,
) -> None:
    hf = house.open()
    head = await started(hf)
    hf._kernel.texts = Failing(hf._kernel.texts, 1)  # type: ignore[assignment]
    speaking = writer(hf, head)
    speaking.emit("all of it")
    finishing = asyncio.ensure_future(speaking.finish())
    await house.clock.asleep(1)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    await written(hf, head)
    assert told(await there(hf)) == {"c": "all of it"}


def test_a_key_of_text_tells_what_it_was_made_of() -> None:
    spool = SpoolKey(7, "0190b0a0-0000-7000-8000-000000000000")
    key = text_key(tenant_key(RUN), "g", spool, 12)
    assert parsed_text_key(key.sk) == (spool, 12)
