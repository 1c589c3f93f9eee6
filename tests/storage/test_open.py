"""Addresses of stores: what each opens, and what a wrong one is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidUrl, StoreClosed, StoreFull, StoreNotFound, StoreUnusable
from holdfast.storage import Key, Put, open
from holdfast.storage.open import cloudformation_template


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_a_file_below_the_current_folder(tmp_path: Path) -> None:
    async with open("sqlite:///runs.db") as store:
        await store.table.write(Put({"PK": "p", "SK": "s"}))
        ref = await store.blobs.put(b"content", key="a/b")
    async with open(f"sqlite:///{tmp_path}/runs.db") as store:
        assert await store.table.get(Key("p", "s")) == {"PK": "p", "SK": "s"}
        assert await store.blobs.get(ref) == b"content"
    assert (tmp_path / "runs.db").exists()
    assert (tmp_path / "runs.db.blobs").is_dir()


async def test_a_file_with_a_space_in_its_name(tmp_path: Path) -> None:
    async with open("sqlite:///my%20runs.db"):
        assert (tmp_path / "my runs.db").exists()


async def test_a_store_says_how_often_to_poll_it() -> None:
    async with open("sqlite:///runs.db") as file, open("dynamodb://runs") as table:
        assert (file.poll_seconds, table.poll_seconds) == (0.15, 0.9)


async def test_blobs_elsewhere(tmp_path: Path) -> None:
    async with open("sqlite:///runs%231.db?blobs=else+where/my%20blobs") as store:
        await store.blobs.put(b"content", key="a")
    assert (tmp_path / "runs#1.db").exists()
    assert (tmp_path / "else+where" / "my blobs").is_dir()


@pytest.mark.parametrize("url", ["sqlite:///runs.db", "sqlite:///runs.db?blobs=runs.db.blobs"])
async def test_a_folder_of_blobs_that_is_a_file(url: str, tmp_path: Path) -> None:
    async with open(url) as store:
        await store.table.write(Put({"PK": "p", "SK": "s"}))
    (tmp_path / "runs.db.blobs").write_text("")
    with pytest.raises(StoreUnusable, match="is not a folder"):
        open(url)
    async with open(url, make=False) as store:  # to look at runs, none is needed
        assert await store.table.get(Key("p", "s")) is not None


async def test_a_file_that_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        open("sqlite:///runs.db", make=False)
    assert os.listdir(tmp_path) == []


async def test_nothing_is_kept_in_memory(tmp_path: Path) -> None:
    async with open("sqlite://:memory:") as store:
        await store.table.write(Put({"PK": "p", "SK": "s"}))
        ref = await store.blobs.put(b"content", key="a/b")
        assert await store.blobs.get(ref) == b"content"
    async with open("sqlite://:memory:") as store:
        assert await store.table.get(Key("p", "s")) is None
    assert os.listdir(tmp_path) == []


async def test_the_options_of_a_file() -> None:
    async with open("sqlite:///runs.db?changes=on&max_bytes=200000") as store:
        await store.table.write(Put({"PK": "p", "SK": "s"}))
        assert len((await store.table.read_changes()).changes) == 1
        with pytest.raises(StoreFull):
            await store.table.write(Put({"PK": "p", "SK": "t", "text": "x" * 300_000}))


async def test_a_closed_store_takes_nothing() -> None:
    store = open("sqlite://:memory:")
    await store.close()
    with pytest.raises(StoreClosed, match="was used after its Holdfast was closed"):
        await store.table.get(Key("p", "s"))
    with pytest.raises(StoreClosed):
        await store.blobs.put(b"", key="a")
    await store.close()


async def test_what_both_cost_is_on_one_meter() -> None:
    async with open("sqlite://:memory:") as store:
        await store.table.write(Put({"PK": "p", "SK": "s"}))
        await store.blobs.put(b"content", key="a/b")
        operations = [row.operation for row in store.meter.report().rows]
        assert "write" in operations
        assert len(operations) == 2


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "must begin with sqlite: or dynamodb:"),
        ("runs.db", "must begin with sqlite: or dynamodb:"),
        ("postgres://runs", "not with 'postgres'"),
        ("sqlite://", "must name a file"),
        ("sqlite:///", "must name a file"),
        ("sqlite://runs.db", "three slashes: sqlite:///runs.db"),
        ("sqlite://folder/runs.db", "three slashes: sqlite:///folder/runs.db"),
        ("sqlite:/runs.db", "three slashes: sqlite:///runs.db"),
        ("sqlite:/var/runs.db", "an absolute path four: sqlite:////var/runs.db"),
        ("sqlite:runs.db", "three slashes: sqlite:///runs.db"),
        ("SQLite:/runs.db?changes=on", "three slashes: sqlite:///runs.db"),
        ("sqlite:", "must name a file"),
        ("sqlite:/", "three slashes"),
        (" sqlite:///runs.db", "must not begin or end with a space"),
        ("sqlite:///runs.db ", "must not begin or end with a space"),
        ("C:\\data\\runs.db", "for a file write sqlite:///C:/data/runs.db"),
        ("./data/runs.db", "for a file write sqlite:///./data/runs.db"),
        ("dynamodb:runs", "nothing else: dynamodb://runs"),
        ("dynamodb:/runs", "nothing else: dynamodb://runs"),
        ("sqlite:///runs.db?change=on", "no such option: 'change'"),
        ("sqlite:///runs.db?changes=yes", "on or off, got 'yes'"),
        ("sqlite:///runs.db?changes", "changes"),
        ("sqlite:///runs.db?blobs=", "'blobs' must not be empty"),
        ("sqlite:///runs.db?max_bytes=lots", "positive integer, in bytes"),
        ("sqlite:///runs.db?max_bytes=0", "positive integer, in bytes"),
        ("sqlite:///runs.db?max_bytes=٣٠٠٠٠٠", "positive integer, in bytes"),
        ("sqlite:///runs.db?max_bytes=" + "9" * 5000, "positive integer, in bytes"),
        ("sqlite:///runs.db?changes=on&changes=off", "'changes' must occur only once"),
        ("sqlite:///my#runs.db", "write %23 for #"),
        ("sqlite:///runs%00.db", "# or NUL"),
        ("sqlite:///runs.db?region=eu-west-1", "no such option: 'region'"),
        ("dynamodb://", "name of the table"),
        ("dynamodb:///runs", "name of the table"),
        ("dynamodb://runs/more", "name of the table"),
        ("dynamodb://runs?buckets=b", "no such option: 'buckets'"),
        ("dynamodb://a", "3 to 255 letters"),
        ("dynamodb://user:pw@runs", "must not contain credentials"),
        ("dynamodb://runs?endpoint=localhost:8000", "http(s)://host[:port]"),
        ("dynamodb://runs?endpoint=http://a..b:80", "http(s)://host[:port]"),
        ("dynamodb://runs?bucket=B_AD", "valid name of an S3 bucket"),
        ("dynamodb://runs?bucket=a..b", "valid name of an S3 bucket"),
        ("dynamodb://runs?bucket=abc&bucket_endpoint=localhost:9", "http(s)://host[:port]"),
        ("dynamodb://runs?region=eu%0d%0aX", "name of an AWS region"),
        ("http://[", "cannot open"),
        (None, "cannot open"),
        (7, "cannot open"),
        (b"sqlite:///runs.db", "cannot open"),
    ],
)
def test_a_wrong_address_is_told_what_is_wrong_and_what_is_right(
    url: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidUrl) as error:
        open(url)
    assert reason in str(error.value)
    assert "sqlite:///runs.db" in str(error.value)
    assert "dynamodb://runs?region=eu-west-1&bucket=my-blobs" in str(error.value)
    assert os.listdir(tmp_path) == []


def test_a_file_in_a_folder_that_is_not_there() -> None:
    with pytest.raises(StoreNotFound, match=r"none/runs\.db"):
        open("sqlite:///none/runs.db")


async def test_a_table_without_a_bucket_has_no_blobs() -> None:
    async with open("dynamodb://runs?region=us-east-1") as store:
        assert not store.has_blobs
        with pytest.raises(StoreUnusable, match="&bucket=NAME"):
            _ = store.blobs


async def test_a_table_and_a_bucket(dynamodb_local: str, moto_server: str) -> None:
    url = (
        f"dynamodb://opened?region=us-east-1&endpoint={dynamodb_local}"
        f"&bucket=opened&bucket_endpoint={moto_server}"
    )
    async with open(url) as store:
        with pytest.raises(StoreNotFound, match="holdfast store create"):
            await store.table.get(Key("p", "s"))
        with pytest.raises(StoreNotFound, match="holdfast store create"):
            await store.blobs.put(b"content", key="a")
        await store.create()
        await store.create()
        await store.table.write(Put({"PK": "p", "SK": "s"}))
        ref = await store.blobs.put(b"content", key="a")
    async with open(url) as store:
        assert await store.table.get(Key("p", "s")) == {"PK": "p", "SK": "s"}
        assert await store.blobs.get(ref) == b"content"


def test_without_the_extra_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.storage.dynamodb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(StoreUnusable, match="install the extra 'aws'"):
        open("dynamodb://runs")


def test_a_template_of_the_table() -> None:
    template = cloudformation_template("dynamodb://runs?region=eu-west-1")
    properties = template["Resources"]["Table"]["Properties"]
    assert properties["TableName"] == "runs"
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    with pytest.raises(InvalidUrl, match="a file needs no definition"):
        cloudformation_template("sqlite:///runs.db")
    with pytest.raises(InvalidUrl, match="3 to 255 letters"):
        cloudformation_template("dynamodb://a")


PIECES = st.sampled_from(
    ["", "/", "//", ":", "@", "?", "&", "=", "#", "[", "]", "%", "%00", "%zz", "%ff", "..", ".",
     "~", "\0", "\n", "\t", " ", "\u202e", "\ud800", "²", "ä", "x" * 300, "a/" * 600, ":0",
     ":99999", ":memory:", "runs.db", "table", "http://", "https://h:80", "http://[::1]", "ftp://h",
     "-1", "9" * 5000, "on", "123456789012", "eu-west-1", "sqlite:", "dynamodb:"]
) | st.text(max_size=5)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=4).map("".join)
OPTIONS = st.sampled_from(
    ["region", "bucket", "bucket_owner", "endpoint", "bucket_endpoint", "profile", "kms_key",
     "changes", "blobs", "max_bytes", "nonsense", ""]
)  # fmt: skip
ADDRESSES = st.builds(
    lambda scheme, host, path, options: (
        f"{scheme}{host}{path}?" + "&".join(f"{name}={value}" for name, value in options)
    ),
    st.sampled_from(["sqlite://", "sqlite:///", "dynamodb://", "dynamodb://table", ""]),
    TEXTS,
    TEXTS,
    st.lists(st.tuples(OPTIONS, TEXTS), max_size=4),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(address=ADDRESSES | TEXTS, secret=st.booleans(), at=st.integers(0, 40))
async def test_any_address_opens_or_is_a_typed_error(address: str, secret: bool, at: int) -> None:
    if secret:
        address = f"{address[:at]}http://ann:hunter2@h{address[at:]}"
    told = ""
    try:
        await open(address, make=False).close()
    except (InvalidUrl, StoreUnusable) as error:
        told = str(error)
    assert "hunter2" not in told


@pytest.mark.parametrize("option", ["bucket_owner=123456789012", "kms_key=k", "bucket_endpoint=x"])
def test_an_option_of_the_bucket_needs_one(option: str) -> None:
    with pytest.raises(InvalidUrl, match="needs a bucket"):
        open(f"dynamodb://table?region=eu-west-1&{option}")


@pytest.mark.parametrize("control", ["\n", "\r", "\t", "\0", "\x1b"])
def test_no_letter_of_an_address_is_dropped(control: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl, match="control characters"):
        open(f"sqlite:///runs{control}.db")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("host", ["h%20x", "h x", "h\u2028x", "[zz]", "[", "h%25x", "h*"])
def test_a_host_that_cannot_be_one(host: str) -> None:
    with pytest.raises(InvalidUrl, match="http"):
        open(f"dynamodb://table?region=eu-west-1&endpoint=http://{host}")
