"""What `Blobs` promises, in a folder and in a bucket: the same file runs on both."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.clock import SystemIds
from holdfast.errors import (
    BlobDamaged,
    BlobNotFound,
    InvalidBlobKey,
    InvalidItem,
    InvalidQuery,
    InvalidRequest,
    StoreClosed,
)
from holdfast.storage import blobs as blobs_module
from holdfast.storage.blobs import BlobEngine, BlobEntry, BlobPage, BlobRef, Blobs
from holdfast.storage.meter import Meter
from holdfast.storage.units import Units
from tests.contract.places import PLACES, Bucket, Folder, Place

DATA = b"eight byte"
SHA256 = hashlib.sha256(DATA).hexdigest()
OTHER = b"other byte"


# To make a client of boto3 takes longer than most of these tests, so each place has one engine.


@pytest.fixture(scope="module", params=PLACES)
def each_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if request.param == "folder":
        yield Folder(tmp_path_factory.mktemp("contract") / "blobs")
        return
    endpoint = request.getfixturevalue("moto_server")
    with closing(boto3.client("s3", endpoint_url=endpoint)) as client:
        place = Bucket(f"blobs-{SystemIds().new()}", endpoint, client)
        client.create_bucket(Bucket=place.bucket)
        # Without versions, moto answers 500 to a put whose object is overwritten while it answers.
        client.put_bucket_versioning(
            Bucket=place.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
        yield place


@pytest.fixture(scope="module")
def engine(each_place: Place) -> Iterator[BlobEngine]:
    engine = each_place.open()
    yield engine
    engine.close()


@pytest.fixture
async def place(each_place: Place) -> AsyncIterator[Place]:
    each_place.empty()
    async with asyncio.timeout(60):
        yield each_place


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def blobs(place: Place, engine: BlobEngine, meter: Meter) -> Blobs:
    return Blobs(engine, meter)


def ref_of(key: str, data: bytes) -> BlobRef:
    return BlobRef(key, hashlib.sha256(data).hexdigest(), len(data))


async def keys_of(blobs: Blobs, prefix: str = "") -> list[str]:
    page = await blobs.list(prefix)
    assert page.cursor is None
    return [entry.key for entry in page.entries]


# --- tidying --------------------------------------------------------------------------------------


async def test_tidying_touches_no_blob_and_nothing_foreign(
    blobs: Blobs, place: Place, meter: Meter
) -> None:
    assert await blobs.remove_leftovers(before_ms=10**13) == 0  # also where nothing was ever put
    refs = [await blobs.put(DATA, key=key) for key in ("a", "a/b", "x/y/z")]
    await blobs.put(DATA, key="gone/soon")
    await blobs.delete("gone/soon")
    place.litter()
    before = place.names()
    assert await blobs.remove_leftovers(before_ms=10**13) == 0
    assert place.names() == before
    assert [await blobs.get(ref) for ref in refs] == [DATA] * 3
    (row,) = [row for row in meter.report().rows if row.operation == "blob_tidy"]
    assert (row.calls, row.units) == (2, Units())


@pytest.mark.parametrize("moment", [-1, 1.5, "now", None, True], ids=repr)
async def test_tidying_needs_a_time(blobs: Blobs, moment: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await blobs.remove_leftovers(before_ms=moment)
    assert refused.value.field == "before_ms"


# --- putting and getting -------------------------------------------------------------------------


async def test_what_was_put_under_a_key_is_got(blobs: Blobs, place: Place) -> None:
    ref = await blobs.put(DATA, key="scans/42.pdf")
    assert ref == BlobRef("scans/42.pdf", SHA256, len(DATA))
    assert await blobs.get(ref) == DATA
    assert place.load("scans/42.pdf") == DATA


@pytest.mark.parametrize("prefix", ["", "7d/acme/run/"])
async def test_without_a_key_the_hash_is_the_last_segment(blobs: Blobs, prefix: str) -> None:
    ref = await blobs.put(DATA, prefix=prefix)
    assert ref == BlobRef(prefix + SHA256, SHA256, len(DATA))
    assert await blobs.get(ref) == DATA


async def test_another_engine_gets_what_was_put(blobs: Blobs, place: Place, meter: Meter) -> None:
    ref = await blobs.put(DATA, key="a/b")
    other = Blobs(place.open(), meter)
    assert await other.get(ref) == DATA
    await other.close()


async def test_a_key_is_put_again(blobs: Blobs) -> None:
    first = await blobs.put(DATA, key="a")
    second = await blobs.put(OTHER, key="a")
    assert await blobs.get(second) == OTHER
    with pytest.raises(BlobDamaged):
        await blobs.get(first)


async def test_what_is_there_by_its_hash_is_not_written_again(
    blobs: Blobs, engine: BlobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await blobs.put(DATA, prefix="a/")

    async def write(*_: object) -> None:
        pytest.fail("it was written again")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "write", write)
        assert await blobs.put(DATA, prefix="a/") == ref


@pytest.mark.parametrize("standing", [DATA[:-1], b""], ids=["truncated", "empty"])
async def test_what_is_there_in_another_size_is_written_again(
    blobs: Blobs, place: Place, standing: bytes
) -> None:
    place.store(f"a/{SHA256}", standing)
    assert await blobs.get(await blobs.put(DATA, prefix="a/")) == DATA


@pytest.mark.parametrize("named", [True, False])
async def test_a_blob_may_be_empty(blobs: Blobs, named: bool) -> None:
    ref = await blobs.put(b"", key="empty") if named else await blobs.put(b"")
    assert ref.size == 0
    assert await blobs.get(ref) == b""
    assert (await blobs.list()).entries == [BlobEntry(ref.key, 0)]


@pytest.mark.parametrize("size", [8 * 1024**2, 8 * 1024**2 + 1, 9 * 1024**2])
async def test_a_blob_may_be_large(blobs: Blobs, size: int) -> None:
    data = random.Random(size).randbytes(size)
    ref = await blobs.put(data)
    assert ref == ref_of(ref.key, data)
    assert await blobs.get(ref) == data
    assert (await blobs.list()).entries == [BlobEntry(ref.key, size)]


async def test_only_bytes_within_the_limit_are_a_blob(
    blobs: Blobs, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in ("text", bytearray(b"x"), None):
        with pytest.raises(InvalidRequest) as caught:
            await blobs.put(data, key="a")  # type: ignore[arg-type]
        assert caught.value.field == "data"
    monkeypatch.setattr(blobs_module, "BLOB_BYTES_MAX", 9)
    with pytest.raises(InvalidRequest) as caught:
        await blobs.put(DATA, key="a")
    assert (caught.value.field, caught.value.size, caught.value.limit) == ("data", 10, 9)
    assert not place.names()


# --- what is missing or damaged ------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", "a/b/c", "a/b/c/e", "a/b/d", "a-b"])
async def test_a_missing_blob_is_named(blobs: Blobs, key: str) -> None:
    await blobs.put(DATA, key="a/b/c/d")
    with pytest.raises(BlobNotFound, match=f"'{key}'") as caught:
        await blobs.get(ref_of(key, DATA))
    assert caught.value.key == key


async def test_nothing_is_there_at_first(blobs: Blobs) -> None:
    assert await blobs.list() == BlobPage([], None)
    with pytest.raises(BlobNotFound):
        await blobs.get(ref_of("a", DATA))
    await blobs.delete("a")
    assert await blobs.delete_all("a/") == 0


@pytest.mark.parametrize(
    "found", [b"eight bytE", DATA[:-1], DATA + b"!", b"", DATA * 1000], ids=lambda data: len(data)
)
async def test_damaged_bytes_are_not_returned(blobs: Blobs, place: Place, found: bytes) -> None:
    ref = await blobs.put(DATA, key="a/b")
    place.store("a/b", found)
    with pytest.raises(BlobDamaged) as caught:
        await blobs.get(ref)
    assert caught.value.key == "a/b"
    message = str(caught.value)
    assert "'a/b'" in message
    assert f"expected 10 bytes with sha256 {SHA256}" in message
    assert f"{len(found):,} bytes" in message.split("found")[1]
    # What is larger than it should be is not even read.
    was_read = hashlib.sha256(found).hexdigest() in message
    assert was_read == (len(found) <= len(DATA))


# --- deleting ------------------------------------------------------------------------------------


async def test_a_deleted_blob_is_gone(blobs: Blobs, place: Place) -> None:
    ref = await blobs.put(DATA, key="a/b")
    await blobs.delete("a/b")
    await blobs.delete("a/b")
    with pytest.raises(BlobNotFound):
        await blobs.get(ref)
    assert not place.names()


@pytest.mark.parametrize("gone", ["a", "a/b", "a/b/c"])
async def test_a_blob_may_have_the_name_of_a_folder(blobs: Blobs, gone: str) -> None:
    refs = {key: await blobs.put(key.encode(), key=key) for key in ("a/b/c", "a/b", "a")}
    for key, ref in refs.items():
        assert await blobs.get(ref) == key.encode()
    await blobs.delete(gone)
    del refs[gone]
    assert await keys_of(blobs) == sorted(refs)
    for key, ref in refs.items():
        assert await blobs.get(ref) == key.encode()


async def test_a_prefix_is_freed_as_a_whole(blobs: Blobs) -> None:
    inside = ["run/a", "run/b/c/d", "run/b/c", "run/b-c"]
    outside = ["run", "run-2/a", "run0", "runs/a", "r/run/a", "Run/a"]
    for key in inside + outside:
        await blobs.put(DATA, key=key)
    assert await blobs.delete_all("run/") == len(inside)
    assert await keys_of(blobs) == sorted(outside)
    assert await blobs.delete_all("run/") == 0
    await blobs.put(DATA, key="run/a")
    assert await blobs.delete_all("run/") == 1


async def test_only_a_whole_prefix_can_be_freed(blobs: Blobs) -> None:
    await blobs.put(DATA, key="run/a")
    for prefix in ("", "/", "run", "run/a", "//", "./", "../", "run//", ".run/", None):
        error = await refused(blobs.delete_all(prefix), InvalidBlobKey)  # type: ignore[arg-type]
        assert error.field == "prefix", prefix
    assert await keys_of(blobs) == ["run/a"]


async def test_what_was_not_put_by_us_is_left_alone(blobs: Blobs, place: Place) -> None:
    litter = place.litter()
    assert await blobs.list() == BlobPage([], None)
    for key in ("a/b", "a/half%2"):
        await blobs.put(DATA, key=key)
    assert await keys_of(blobs) == await keys_of(blobs, "a/") == ["a/b", "a/half%2"]
    assert await blobs.delete_all("a/") == 2
    assert place.names() == litter


# --- keys ----------------------------------------------------------------------------------------

FIT = [
    "x" * 255,
    "x" * 254 + "/" + "y" * 255,
    "é" * 127,
    "~" * 85,
    "%" * 84 + "/x",
    "/".join(["x" * 254] * 4) + "/" + "y" * 4,  # 1,024 bytes
    "/".join("x" * 32),
    "~/%/%7E/%25/%257E/a~",
    "a b/ c /+&?#=;:@,$",
    "q\"'<>|*[]{}`^!()",
    "a..b/c.d/e.",
    "\u65e5\u672c\u8a9e/\U0001f600/e\u0301",
    "\xa0/\u200b/\u2028/\ufeff",
    "CON/aux.txt",
    "-rf/--",
    "%2e%2e/%2F",
]
UNFIT = [
    ("", None),
    (None, None),
    (7, None),
    (b"a", None),
    ("x" * 256, (256, 255)),
    ("x" * 255 + "/y", (256, 255)),
    ("y/" + "é" * 128, (256, 255)),
    ("~" * 86, (258, 255)),
    ("%" * 85 + "/x", (256, 255)),
    ("/".join(["x" * 254] * 4) + "/" + "y" * 5, (1025, 1024)),
    ("/".join("x" * 33), (33, 32)),
    ("/", None),
    ("/a", None),
    ("a/", None),
    ("a//b", None),
    (".", None),
    ("..", None),
    ("../a", None),
    ("a/../../../../tmp/b", None),
    ("a/./b", None),
    ("a/..", None),
    (".writing/a", None),
    ("a/.hidden", None),
    ("a\\b", None),
    ("..\\a", None),
    ("a\0b", None),
    ("a\nb", None),
    ("a\x1f", None),
    ("a\x7f", None),
    ("a\x85", None),
    ("a\ud800", None),
    ("\udcff", None),
    ("a\ufffe", None),
    ("a\uffff", None),
]


def labelled(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:20]}-{text[-20:]}({len(text)})"


@pytest.mark.parametrize("key", FIT, ids=labelled)
async def test_an_awkward_key_is_a_key(blobs: Blobs, place: Place, key: str) -> None:
    ref = await blobs.put(DATA, key=key)
    assert await blobs.get(ref) == place.load(key) == DATA
    assert (await blobs.list()).entries == [BlobEntry(key, len(DATA))]
    assert await keys_of(blobs, key) == [key]
    await blobs.delete(key)
    assert not place.names()
    if fits(f"{key}/a"):
        await blobs.put(DATA, key=f"{key}/a")
        assert await blobs.delete_all(f"{key}/") == 1
    assert not place.names()


def fits(key: str) -> bool:
    try:
        return bool(blobs_module.validate_blob_key(key))
    except InvalidBlobKey:
        return False


async def refused(call: Awaitable[object], error: type[InvalidRequest]) -> InvalidRequest:
    try:
        await call
    except error as caught:
        return caught
    pytest.fail("it was let through")


async def test_a_hostile_key_is_refused_before_anything_is_written(
    blobs: Blobs, place: Place
) -> None:
    for key, measured in UNFIT:
        errors = [
            await refused(blobs.get(BlobRef(key, SHA256, len(DATA))), InvalidBlobKey),
            await refused(blobs.delete(key), InvalidBlobKey),
        ]
        if key is not None:
            errors.append(await refused(blobs.put(DATA, key=key), InvalidBlobKey))
        for error in errors:
            assert error.field == "key", ascii(key)
            assert (error.size, error.limit) == (measured or (None, None)), ascii(key)
    assert not place.names()


async def test_a_hostile_prefix_is_refused(blobs: Blobs, place: Place) -> None:
    prefixes: list[Any] = [None, 7, b"a/", "/", "../", "a//", ".a/", "a\n/", "x" * 255 + "/"]
    for prefix in [*prefixes, "a"]:
        error = await refused(blobs.put(DATA, prefix=prefix), InvalidBlobKey)
        assert error.field == "prefix", ascii(prefix)
    for prefix in [*prefixes, "a/."]:
        error = await refused(blobs.list(prefix), InvalidBlobKey)
        assert error.field == "prefix", ascii(prefix)
    assert not place.names()


async def test_the_hash_below_a_prefix_has_to_fit(blobs: Blobs, place: Place) -> None:
    prefix = "/".join(["x" * 239] * 4) + "/"  # 960 bytes, and 64 for the hash
    await blobs.put(DATA, prefix=prefix)
    place.empty()
    with pytest.raises(InvalidBlobKey) as caught:
        await blobs.put(DATA, prefix="x" + prefix)
    assert (caught.value.field, caught.value.size) == ("prefix", 1025)
    with pytest.raises(InvalidBlobKey):
        await blobs.put(DATA, key="a", prefix="b/")
    assert not place.names()


# --- listing -------------------------------------------------------------------------------------


async def test_keys_are_listed_by_their_bytes(blobs: Blobs) -> None:
    keys = [
        "A",
        "a",
        "a!",
        "a-b/c",
        "a/b",
        "a/b!",
        "a/b/c",
        "a/c",
        "a0",
        "é",
        "\uff5e",
        "\U00010000",
    ]
    for key in random.Random(1).sample(keys, len(keys)):
        await blobs.put(key.encode(), key=key)
    page = await blobs.list()
    assert page.entries == [BlobEntry(key, len(key.encode())) for key in keys]
    assert page.cursor is None


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("a", ["a", "a-b/c", "a/b", "ab"]),
        ("a/", ["a/b"]),
        ("a-b/c", ["a-b/c"]),
        ("c", []),
        ("a/b/", []),
    ],
)
async def test_a_prefix_is_that_of_the_text(blobs: Blobs, prefix: str, found: list[str]) -> None:
    for key in ("a", "a-b/c", "a/b", "ab", "b/a"):
        await blobs.put(DATA, key=key)
    assert await keys_of(blobs, prefix) == found


async def test_pages_end_exactly(blobs: Blobs) -> None:
    for key in ("a", "b/c", "d"):
        await blobs.put(DATA, key=key)
    page = await blobs.list(limit=2)
    assert ([entry.key for entry in page.entries], page.cursor) == (["a", "b/c"], "b/c")
    page = await blobs.list(after=page.cursor, limit=1)
    assert ([entry.key for entry in page.entries], page.cursor) == (["d"], None)
    assert (await blobs.list(limit=3)).cursor is None
    assert await blobs.list(after="d") == BlobPage([], None)


async def test_a_page_may_begin_after_any_text(blobs: Blobs) -> None:
    keys = ["a", "a-b", "a/b", "a/b/c", "b", "b/c"]
    for key in keys:
        await blobs.put(DATA, key=key)
    afters = ("", "a", "a/", "a/b", "a0", ".", "/", "b/c/d", "é", "a\n", "a/bb")
    for prefix, after in itertools.product(("", "a", "a/", "a/b", "b/"), afters):
        page = await blobs.list(prefix, after=after)
        expected = [key for key in keys if key.startswith(prefix) and key > after]
        assert [entry.key for entry in page.entries] == expected, (prefix, after)


async def test_a_wrong_page_is_refused(blobs: Blobs) -> None:
    limits: list[Any] = [0, -1, 1001, 1.0, "1", None, True]
    for limit in limits:
        assert (await refused(blobs.list(limit=limit), InvalidQuery)).field == "limit", limit
    places: list[Any] = [7, b"a", "\ud800", "x" * 1025, "a\0"]
    for after in places:
        assert (await refused(blobs.list(after=after), InvalidQuery)).field == "after", ascii(after)


# --- against a model -----------------------------------------------------------------------------

# Few letters, so that keys meet each other, and those next to the two that have a meaning.
SEGMENTS = st.text("ab-.0/~%é", min_size=1, max_size=3).map(lambda text: text.replace("/", "!"))
WILD = st.text(min_size=1, max_size=4)
KEYS = st.lists(SEGMENTS | WILD, min_size=1, max_size=3).map("/".join).filter(fits)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("delete_all"), KEYS),
)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), steps=st.lists(STEPS, max_size=12), limit=st.integers(1, 5))
async def test_it_does_what_a_dict_does(
    blobs: Blobs, place: Place, data: st.DataObject, steps: list[Any], limit: int
) -> None:
    place.empty()
    model: dict[str, bytes] = {}
    refs: dict[str, BlobRef] = {}
    known: list[str] = ["a"]
    for step in steps:
        match step:
            case ("put", key, value):
                refs[key] = await blobs.put(value, key=key)
                model[key] = value
                known.append(key)
            case ("delete", key):
                key = data.draw(st.sampled_from(known) | st.just(key))
                await blobs.delete(key)
                model.pop(key, None)
            case (_, key):
                key = data.draw(st.sampled_from(known) | st.just(key)).split("/")[0]
                inside = [each for each in model if each.startswith(f"{key}/")]
                assert await blobs.delete_all(f"{key}/") == len(inside)
                for each in inside:
                    del model[each]
    cut = data.draw(st.sampled_from(known))
    prefix = cut[: data.draw(st.integers(0, len(cut)))]
    after = data.draw(st.none() | st.sampled_from(known) | KEYS)
    if prefix and not fits(f"{prefix}x" if prefix.endswith("/") else prefix):
        prefix = ""
    expected = sorted(
        (key for key in model if key.startswith(prefix) and key.encode() > (after or "").encode()),
        key=str.encode,
    )
    assert await paged(blobs, prefix, after, limit) == [
        BlobEntry(key, len(model[key])) for key in expected
    ]
    for key, value in model.items():
        assert await blobs.get(refs[key]) == value


async def paged(blobs: Blobs, prefix: str, after: str | None, limit: int) -> list[BlobEntry]:
    """Read all pages, and check that each but the last is full."""
    entries: list[BlobEntry] = []
    while True:
        page = await blobs.list(prefix, after=after, limit=limit)
        entries += page.entries
        if page.cursor is None:
            assert len(page.entries) <= limit
            return entries
        assert len(page.entries) == limit
        assert page.cursor == page.entries[-1].key
        after = page.cursor


@given(st.text(max_size=300) | KEYS)
@example("x" * 255)
def test_a_key_that_is_let_through_keeps_to_the_rules(key: str) -> None:
    if fits(key):
        names = [segment.replace("%", "%25").replace("~", "%7E") for segment in key.split("/")]
        assert len(key.encode()) <= 1024
        assert all(0 < len(name.encode()) <= 255 and name[0] != "." for name in names)
        assert "\\" not in key
        assert all(ord(letter) >= 32 for letter in key)


# --- at the same time ----------------------------------------------------------------------------


async def test_many_puts_at_once(blobs: Blobs) -> None:
    values = {f"{number % 5}/{number}": bytes([number]) * number for number in range(40)}
    refs = await asyncio.gather(*(blobs.put(value, key=key) for key, value in values.items()))
    assert await keys_of(blobs) == sorted(values)
    assert await asyncio.gather(*map(blobs.get, refs)) == list(values.values())


async def test_of_many_puts_under_one_key_one_stands_as_a_whole(blobs: Blobs, place: Place) -> None:
    values = [bytes([number]) * 50_000 for number in range(20)]
    refs = await asyncio.gather(*(blobs.put(value, key="a/b") for value in values))
    standing = place.load("a/b")
    assert standing in values
    assert await blobs.get(refs[values.index(standing)]) == standing


async def test_many_puts_of_the_same_bytes(blobs: Blobs) -> None:
    refs = await asyncio.gather(*(blobs.put(DATA, prefix="a/") for _ in range(20)))
    assert set(refs) == {ref_of(f"a/{SHA256}", DATA)}
    assert await blobs.get(refs[0]) == DATA


async def test_a_prefix_is_freed_while_it_is_written(blobs: Blobs, place: Place) -> None:
    async def put(number: int) -> None:
        for turn in range(8):
            ref = await blobs.put(DATA, key=f"run/{turn % 2}/{number}")
            try:
                assert await blobs.get(ref) == DATA
            except BlobNotFound:
                await blobs.delete(ref.key)

    async def free() -> None:
        for _ in range(20):
            await blobs.delete_all("run/")
            await blobs.list("run/")

    await asyncio.gather(*(put(number) for number in range(6)), free(), free())
    await blobs.delete_all("run/")
    assert not place.names()


# --- references, costs, closing ------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "scans/42.pdf"])
async def test_a_reference_is_kept_in_an_item(blobs: Blobs, key: str | None) -> None:
    ref = await blobs.put(DATA, key=key, prefix="" if key else "a/")
    item = ref.as_item()
    assert item == {"key": ref.key, "size": 10} | ({"sha256": SHA256} if key else {})
    assert BlobRef.from_item(item) == ref


def test_what_is_no_reference_is_refused() -> None:
    items: list[Any] = [
        {},
        None,
        "a",
        {"key": "a"},
        {"key": "a", "size": 1},
        {"key": SHA256, "size": -1},
        {"key": SHA256, "size": "1"},
        {"key": SHA256, "size": True},
        {"key": f"../{SHA256}", "size": 1},
        {"key": 7, "size": 1},
        {"key": "a", "size": 1, "sha256": SHA256[1:]},
        {"key": "a", "size": 1, "sha256": SHA256.upper()},
        {"key": "a", "size": 1, "sha256": None},
    ]
    for item in items:
        with pytest.raises(InvalidItem, match="not a reference"):
            BlobRef.from_item(item)


async def test_only_a_reference_is_got(blobs: Blobs) -> None:
    refs: list[Any] = ["a", None, BlobRef("a", "abc", 1), BlobRef("a", SHA256, -1)]
    for ref in [*refs, BlobRef("a", SHA256, 2**40)]:
        await refused(blobs.get(ref), InvalidRequest)


async def test_operations_are_counted_by_purpose(blobs: Blobs, meter: Meter) -> None:
    documents = blobs.with_purpose("documents")
    ref = await documents.put(DATA, key="a/b")
    await documents.get(ref)
    await documents.get(ref)
    with pytest.raises(BlobNotFound):
        await documents.get(ref_of("c", DATA))
    await blobs.list()
    await blobs.delete("a/b")
    await blobs.delete_all("a/")
    assert {(row.purpose, row.operation): row.calls for row in meter.report().rows} == {
        ("documents", "blob_put"): 1,
        ("documents", "blob_get"): 3,
        ("other", "blob_list"): 1,
        ("other", "blob_delete"): 2,
    }
    assert meter.report().by_purpose() == {
        "documents": Units(blob_puts=1, blob_gets=3, blob_bytes=3 * len(DATA)),
        "other": Units(blob_puts=2),
    }
    # $0.005 a thousand PUT or LIST, $0.0004 a thousand GET; three of each
    assert meter.report().usd == pytest.approx((3 * 0.005 + 3 * 0.0004) / 1000)


async def test_a_put_costs_by_what_it_took(blobs: Blobs, meter: Meter) -> None:
    large = bytes(9 * 1024**2)
    for data, units in (
        (DATA, Units(blob_gets=1, blob_puts=1, blob_bytes=10)),
        (DATA, Units(blob_gets=1)),  # it is there
        (large, Units(blob_gets=1, blob_puts=4, blob_bytes=len(large))),  # begun, two parts, ended
    ):
        meter.reset()
        await blobs.put(data)
        assert meter.report().units == units


async def test_create_keeps_what_is_there(blobs: Blobs) -> None:
    await blobs.create()
    ref = await blobs.put(DATA, key="a")
    await blobs.create()
    assert await blobs.get(ref) == DATA


async def test_nothing_works_after_closing(place: Place, meter: Meter) -> None:
    blobs = Blobs(place.open(), meter)
    ref = await blobs.put(DATA, key="a")
    await blobs.close()
    await blobs.close()
    for call in (
        lambda: blobs.put(DATA, key="b"),
        lambda: blobs.put(DATA),
        lambda: blobs.get(ref),
        lambda: blobs.delete("a"),
        lambda: blobs.delete_all("a/"),
        lambda: blobs.list(),
        lambda: blobs.create(),
        lambda: blobs.with_purpose("other").list(),
    ):
        with pytest.raises(StoreClosed):
            await call()


async def test_closing_waits_for_what_is_under_way(place: Place, meter: Meter) -> None:
    blobs = Blobs(place.open(), meter)
    puts = [asyncio.create_task(blobs.put(DATA, key=f"a/{number}")) for number in range(20)]
    started = asyncio.Event()
    asyncio.get_running_loop().call_soon(started.set)
    await started.wait()  # until every put was handed on
    await blobs.close()
    assert len(place.names()) == len(puts)
    for ref in await asyncio.gather(*puts):
        assert place.load(ref.key) == DATA
