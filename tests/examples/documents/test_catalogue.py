"""A record is found among many by two small blobs, and equal content is stored once."""

from __future__ import annotations

from documents.catalogue import GROUP, BlobMemory, Catalogue, group_range, groups_of
from documents.segments import SegmentContent, SegmentRecord, is_blank
from documents.shelf import Shelf


class Memory:
    """Blobs in a dict; it counts what is read."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.reads = 0

    async def put_blob(
        self,
        data: bytes,
        *,
        name: str,
        document: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
    ) -> str:
        uri = f"{tenant}:{prefix}{name}"
        assert self.stored.setdefault(uri, data) == data, "another content under a known name"
        return uri

    async def read_blob(self, uri: str, *, tenant: str | None = None) -> bytes:
        assert uri.startswith(f"{tenant}:")
        self.reads += 1
        return self.stored[uri]


async def test_a_record_is_found_without_reading_all() -> None:
    blobs, number = Memory(), 1_000
    shelf = Shelf(blobs, tenant="acme", prefix="documents/acme/d/", workflow="w")
    groups = [
        await Catalogue.put_group(
            shelf,
            "parsed",
            group,
            {index: SegmentRecord(uri=f"at {index}") for index in group_range(group, number)},
        )
        for group in range(groups_of(number))
    ]
    catalogue = Catalogue(shelf, await Catalogue.put(shelf, "parsed", groups), BlobMemory())
    found = await catalogue.record(777)
    assert found == SegmentRecord(uri="at 777")
    assert blobs.reads == 2
    await catalogue.record(777 - 777 % GROUP)
    assert blobs.reads == 2, "what was read last is kept"
    assert await catalogue.record(number) is None
    assert await catalogue.record(number * 2) is None


async def test_a_memory_forgets_what_was_not_read_for_longest() -> None:
    memory, loaded = BlobMemory(values_max=2), list[str]()

    async def load(uri: str) -> str:
        loaded.append(uri)
        return uri

    for uri in ("a", "b", "a", "c", "a", "b"):
        assert await memory.load(uri, load) == uri
    assert loaded == ["a", "b", "c", "b"]


async def test_a_step_that_runs_again_stores_nothing_new() -> None:
    blobs = Memory()
    shelf = Shelf(blobs, tenant="acme", prefix="documents/acme/d/", workflow="w")
    first = await shelf.put("segments/00001", {"text": "one"})
    assert await shelf.put("segments/00001", {"text": "one"}) == first
    assert await shelf.put("segments/00001", {"text": "two"}) != first
    assert await shelf.load(first) == {"text": "one"}


def test_content_is_bounded_and_can_be_stored() -> None:
    content = SegmentContent(
        index=1,
        title="t" * 10_000,
        text="x" * 1_000_000 + "\ud800",
        tables=[{"rows": [["c" * 5_000] * 50] * 5_000}] * 200,
    )
    stored = content.as_json()
    assert len(stored["text"]) == 200_000
    assert [len(row[0]) for table in stored["tables"] for row in table["rows"]] == [1_000] * 4
    wide = SegmentContent(index=1, tables=[{"rows": [[1] * 100] * 150}] * 2).as_json()
    assert [len(table["rows"]) for table in wide["tables"]] == [150, 50]
    assert wide["tables"][0]["rows"][0][:2] == ["1", "1"]
    assert SegmentContent.of(stored).as_json() == stored
    surrogate = SegmentContent(index=1, text="a\ud800b").as_json()
    assert surrogate["text"] == "a?b"


def test_a_segment_without_letters_and_digits_is_blank() -> None:
    assert is_blank(SegmentContent(index=1, text=" \n — … "))
    assert not is_blank(SegmentContent(index=1, title="A title"))
    assert not is_blank(SegmentContent(index=1, description="a cat"))
