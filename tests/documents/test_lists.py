"""Lists by status and counts: their cost follows what they return, not what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidQuery
from holdfast.model.document import WORKFLOW_STATUSES, WorkflowStatus
from holdfast.records.document import StoredDocument
from holdfast.records.document_keys import COUNT_SHARDS
from holdfast.records.document_workflow import begin_writes, begun_workflow, change_writes
from holdfast.storage import Put, Units, Update
from holdfast.storage.writes import item_after
from tests.documents.support import added, begun
from tests.engine.support import House, store_of, units_of

DOCUMENT = StoredDocument(
    tenant="default",
    id="d",
    project="p",
    kind="DOC",
    file_uri="s3://inbox/contract.pdf",
    file_name="contract.pdf",
    file_type="application/pdf",
    created_ms=4_000_000_000_000,
    generation="01890af2-0000-7000-8000-000000000000",
)


async def store_workflows(
    hf: Holdfast, names: Iterable[str], *, status: WorkflowStatus = "in_progress"
) -> None:
    """Store workflows as `begin` and `set_status` do, without a transaction for each."""
    puts: list[Put] = []
    for number, name in enumerate(names):
        made = begun_workflow(DOCUMENT, name, now_ms=DOCUMENT.created_ms + number)
        changed = type(made)(
            **{
                **{field: getattr(made, field) for field in made.__struct_fields__},
                "status": status,
                "revision": 2,
            }
        )
        items: dict[Any, Any] = {}
        for write in begin_writes(DOCUMENT, made, shards=4, token="t"):
            if isinstance(write, Put):
                items[write.key] = write.item
        for write in change_writes(made, changed, shards=4, token="t"):
            if isinstance(write, Update) and write.key in items:
                items[write.key] = item_after(write, dict(items[write.key]))
        puts += [Put(item) for item in items.values()]
    table = store_of(hf).table
    for start in range(0, len(puts), 500):
        await table.write_many(puts[start : start + 500])


async def cost_of_page(hf: Holdfast, *, limit: int, cursor: str | None = None) -> Units:
    before = units_of(hf, "document")
    page = await hf.documents.in_progress(limit=limit, cursor=cursor)
    assert len(page.workflows) == limit
    after = units_of(hf, "document")
    return Units(read=after.read - before.read, index_read=after.index_read - before.index_read)


async def test_workflows_in_progress_are_listed_page_by_page(either: House) -> None:
    documents = either.open().documents
    await added(documents)
    for number in range(15):
        either.clock.advance(1)
        await documents.begin("d", id=f"w{number:02}")
        await documents.set_status(f"w{number:02}", "in_progress")
    for number in (2, 7):
        await documents.set_status(f"w{number:02}", "completed")
    await documents.begin("d", id="pending")
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await documents.in_progress(limit=4, cursor=cursor)
        assert len(page.workflows) <= 4
        assert all(each.status == "in_progress" for each in page)
        found += [each.id for each in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == [f"w{number:02}" for number in range(14, -1, -1) if number not in (2, 7)]
    ended = await documents.in_progress(status="completed")
    assert [each.id for each in ended] == ["w07", "w02"]  # the one that changed last comes first
    assert [each.id for each in await documents.in_progress(status="pending")] == ["pending"]
    assert await documents.counts() == {
        "pending": 1,
        "in_progress": 13,
        "completed": 2,
        "failed": 0,
    }


async def test_a_tenant_sees_its_own_only(either: House) -> None:
    documents = either.open().documents
    await begun(documents)
    assert (await documents.in_progress(tenant="acme")).workflows == []
    assert sum((await documents.counts(tenant="acme")).values()) == 0


async def test_a_page_costs_the_same_with_a_hundred_and_with_ten_thousand(hf: Holdfast) -> None:
    await hf.documents.counts()
    await store_workflows(hf, (f"w{number}" for number in range(100)))
    await hf.documents.in_progress(limit=1)  # reads the settings
    few = await cost_of_page(hf, limit=20)
    await store_workflows(hf, (f"x{number}" for number in range(10_000)))
    # Those that ended are in partitions of their own.
    await store_workflows(hf, (f"y{number}" for number in range(1_000)), status="completed")
    many = await cost_of_page(hf, limit=20)
    assert many == few
    assert many.read == 20  # one for each workflow that is returned
    assert many.index_read <= 4 * 0.5  # one query of each of the four partitions
    first = await hf.documents.in_progress(limit=20)
    assert await cost_of_page(hf, limit=20, cursor=first.cursor) == few


async def test_a_page_costs_the_same_on_dynamodb(either: House) -> None:
    hf = either.open()
    await store_workflows(hf, (f"w{number}" for number in range(60)))
    await hf.documents.in_progress(limit=1)
    few = await cost_of_page(hf, limit=10)
    await store_workflows(hf, (f"x{number}" for number in range(600)))
    assert await cost_of_page(hf, limit=10) == few


async def test_counts_cost_the_same_however_many_there_are(either: House) -> None:
    hf = either.open()
    await added(hf.documents)

    async def cost() -> float:
        before = units_of(hf, "document").reads
        await hf.documents.counts()
        return units_of(hf, "document").reads - before

    await hf.documents.begin("d")
    assert await cost() == 1
    for number in range(3 * COUNT_SHARDS):
        await hf.documents.begin("d", id=f"w{number}")
    assert await cost() == 1
    assert (await hf.documents.counts())["pending"] == 3 * COUNT_SHARDS + 1


async def test_counts_are_exact_after_writers_that_work_at_once(either: House) -> None:
    opened = [either.open() for _ in range(4)]
    documents = [hf.documents for hf in opened]
    await added(documents[0])

    async def process(number: int) -> None:
        mine = documents[number % 4]
        await mine.begin("d", id=f"w{number}")
        await mine.set_status(f"w{number}", "in_progress")
        if number % 3:
            await mine.set_status(f"w{number}", "completed" if number % 3 == 1 else "failed")

    for start in range(0, 24, 8):  # so many at once
        await asyncio.gather(*(process(number) for number in range(start, start + 8)))
    counts = await documents[0].counts()
    assert counts == {"pending": 0, "in_progress": 8, "completed": 8, "failed": 8}
    for status in WORKFLOW_STATUSES:
        assert len((await documents[0].in_progress(status=status)).workflows) == counts[status]


@pytest.mark.parametrize("status", ["done", "", None, 7, ["failed"]])
async def test_an_unknown_status_is_refused(hf: Holdfast, status: Any) -> None:
    with pytest.raises(InvalidQuery) as caught:
        await hf.documents.in_progress(status=status)
    assert caught.value.field == "status"


@pytest.mark.parametrize(
    "cursor", ["", "x", 7, "4000000000000#w", "4000000000000#w#FAX#d", "\x00", "1#w#DOC#d"]
)
async def test_a_wrong_cursor_is_refused(hf: Holdfast, cursor: Any) -> None:
    with pytest.raises(InvalidQuery) as caught:
        await hf.documents.in_progress(cursor=cursor)
    assert caught.value.field == "cursor"


async def test_an_entry_that_is_out_of_date_is_not_shown(hf: Holdfast) -> None:
    """The index of DynamoDB may be behind; the item of the workflow is not."""
    await store_workflows(hf, ["w1", "w2", "w3"])
    table = store_of(hf).table
    item = await table.get(("DOC#default#d", "WF#w2"))  # type: ignore[arg-type]
    assert item is not None
    data = {**item["data"], "status": "completed"}
    await table.write(Put({**item, "data": data}))
    await table.write(Put({"PK": "DOC#default#d", "SK": "WF#w3", "data": "damaged"}))
    assert [each.id for each in await hf.documents.in_progress()] == ["w1"]
