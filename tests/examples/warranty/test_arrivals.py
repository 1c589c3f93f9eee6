"""Arrivals: by a folder, by an upload and by events of S3; one run for each version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.testing import TestKit
from warranty.application import Application
from warranty.arrivals import Arrivals, FolderWatch, InvalidArrival
from warranty.documents import Warranty, labels_of, tenant_of


def record(key: str = "kettle.pdf", *, event: str = "ObjectCreated:Put", **more: Any) -> Any:
    """Return a record as S3 sends it."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-east-1",
        "eventTime": "2026-11-18T01:00:00.000Z",
        "eventName": event,
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "warranties",
            "bucket": {"name": "scans", "arn": "arn:aws:s3:::scans"},
            "object": {
                "key": key,
                "size": 1024,
                "eTag": "d41d8cd98f00b204e9800998ecf8427e",
                "sequencer": "0A1B2C3D4E5F678901",
                **more,
            },
        },
    }


# --- ids ------------------------------------------------------------------------------------------


def test_an_id_is_a_digest_of_bucket_key_and_version() -> None:
    id = Warranty("scans", "tenants/acme/käthe & co/" + "x" * 900, "v1").id
    assert len(id) == 40
    assert id.isalnum()
    ids = {
        Warranty(*parts).id
        for parts in (
            ("a", "b", "c"),
            ("a", "bc", ""),
            ("ab", "", "c"),
            ("a", "b/c", ""),
            ("a", "b", "d"),
            ('a","b', "", "c"),
        )
    }
    assert len(ids) == 6
    # It must stay the same between releases: runs in a store have it.
    assert Warranty("a", "b", "c").id == "c35436c92f0cfeefc35ee1261d7778c95475b653"


@pytest.mark.parametrize(
    ("key", "tenant"),
    [
        ("tenants/acme/a.pdf", "acme"),
        ("tenants/acme/b/a.pdf", "acme"),
        ("tenants/acme", "default"),
        ("tenants/../a.pdf", "default"),
        ("a.pdf", "default"),
        ("other/tenants/acme/a.pdf", "default"),
        ("tenants/" + "x" * 65 + "/a.pdf", "default"),
    ],
)
def test_the_key_says_whose_document_it_is(key: str, tenant: str) -> None:
    assert tenant_of(key) == tenant


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        ("a/b/kettle (2).pdf", {"file": "kettle (2).pdf"}),
        ("a/käthe.pdf", {}),
        ("x" * 65, {}),
        (".hidden", {}),
        ("", {}),
    ],
)
async def test_a_label_has_the_name_if_it_can(
    kit: TestKit, app: Application, key: str, labels: dict[str, str]
) -> None:
    assert labels_of(key) == labels
    if key:
        run = await app.arrivals(kit.hf).add_upload(key, b"text")
        assert (await run.get()).labels == labels


# --- uploads --------------------------------------------------------------------------------------


async def test_the_same_content_under_the_same_name_is_one_run(
    kit: TestKit, app: Application
) -> None:
    arrivals = app.arrivals(kit.hf)
    first = await arrivals.add_upload("a.txt", b"one")
    again = await arrivals.add_upload("a.txt", b"one")
    changed = await arrivals.add_upload("a.txt", b"two")
    renamed = await arrivals.add_upload("b.txt", b"one")
    acme = await arrivals.add_upload("a.txt", b"one", tenant="acme")
    assert (first.repeated, again.repeated) == (False, True)
    assert first.id == again.id == acme.id
    assert acme.tenant == "acme"
    assert len({first.id, changed.id, renamed.id}) == 3
    assert (await first.input()).key == "a.txt"


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("a.txt", b""),
        ("a.txt", b"x" * (10 * 1024 * 1024 + 1)),
        ("", b"x"),
        ("x" * 1025, b"x"),
        (7, b"x"),
    ],
    ids=["empty", "huge", "no key", "long key", "no text"],
)
async def test_what_is_no_document(kit: TestKit, app: Application, key: Any, data: bytes) -> None:
    with pytest.raises(InvalidArrival, match="must"):
        await app.arrivals(kit.hf).add_upload(key, data)
    assert not (await kit.hf.list()).runs


# --- the folder -----------------------------------------------------------------------------------


class Drop:
    """A folder into which a test drops files."""

    def __init__(self, path: Path, arrivals: Arrivals) -> None:
        path.mkdir()
        self.path, self.arrivals = path, arrivals
        self.watch = FolderWatch(path)

    async def look(self) -> list[str]:
        """Return the keys of the documents that a look added."""
        added = await self.watch.look(self.arrivals)
        return [(await run.input()).key for run in added]


@pytest.fixture
def drop(tmp_path: Path, kit: TestKit, app: Application) -> Drop:
    return Drop(tmp_path / "drop", app.arrivals(kit.hf))


async def test_a_file_is_taken_when_it_is_complete(drop: Drop) -> None:
    file = drop.path / "a.txt"
    file.write_bytes(b"half")
    assert await drop.look() == []
    file.write_bytes(b"half and half")
    assert await drop.look() == [], "it grew since the last look"
    assert await drop.look() == ["a.txt"]
    assert await drop.look() == [], "it is taken once"


async def test_a_change_of_the_same_size_is_noticed(drop: Drop) -> None:
    file = drop.path / "a.txt"
    file.write_bytes(b"aaaa")
    await drop.look()
    file.write_bytes(b"bbbb")
    os.utime(file, ns=(1, 1))
    assert await drop.look() == []
    assert await drop.look() == ["a.txt"]


async def test_a_file_under_its_temporary_name_is_left(drop: Drop) -> None:
    for name in ("a.pdf.part", "b.crdownload", ".hidden.pdf", "c.txt~", "d.tmp"):
        (drop.path / name).write_bytes(b"x")
    (drop.path / ".git").mkdir()
    (drop.path / ".git" / "config.txt").write_bytes(b"x")
    await drop.look()
    assert await drop.look() == []
    (drop.path / "a.pdf.part").rename(drop.path / "a.pdf")
    await drop.look()
    assert await drop.look() == ["a.pdf"]


async def test_folders_are_keys_and_links_are_left(drop: Drop, tmp_path: Path) -> None:
    (drop.path / "tenants" / "acme").mkdir(parents=True)
    (drop.path / "tenants" / "acme" / "a.txt").write_bytes(b"x")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (drop.path / "link.txt").symlink_to(tmp_path / "secret.txt")
    (drop.path / "empty.txt").touch()
    await drop.look()
    assert await drop.look() == ["tenants/acme/a.txt"]


async def test_another_drop_of_the_same_content_is_the_same_run(drop: Drop, kit: TestKit) -> None:
    file = drop.path / "a.txt"
    file.write_bytes(b"one")
    await drop.look()
    assert await drop.look() == ["a.txt"]
    file.unlink()
    await drop.look()
    file.write_bytes(b"one")
    again = FolderWatch(drop.path)  # in a process that starts anew
    await again.look(drop.arrivals)
    (run,) = await again.look(drop.arrivals)
    assert run.repeated
    assert len((await kit.hf.list()).runs) == 1


async def test_a_file_that_is_too_large_stops_no_other(
    drop: Drop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warranty.arrivals.FILE_BYTES_MAX", 5)
    (drop.path / "a.txt").write_bytes(b"too large")
    (drop.path / "b.txt").write_bytes(b"small")
    await drop.look()
    assert await drop.look() == ["b.txt"]
    assert "left 'a.txt': 'a.txt' must have from 1 to 5 bytes" in capsys.readouterr().out
    assert await drop.look() == []


# --- events of S3 ---------------------------------------------------------------------------------


async def test_an_event_names_its_objects(kit: TestKit, app: Application) -> None:
    event = {
        "Records": [
            record("tenants/acme/my+warranty+%28K%C3%A4the%29%2B1.pdf", versionId="v1"),
            record("b.png", event="s3:ObjectCreated:CompleteMultipartUpload", versionId="null"),
            record("c.pdf", event="ObjectRemoved:DeleteMarkerCreated", versionId="v2"),
            record("d.pdf", event="ObjectRemoved:Delete"),
            record("e.pdf", event="LifecycleExpiration:Delete"),
        ]
    }
    found = [await run.input() for run in await app.arrivals(kit.hf).add_s3_event(event)]
    assert [(each.bucket, each.key, each.version) for each in found] == [
        ("scans", "tenants/acme/my warranty (Käthe)+1.pdf", "v1"),
        ("scans", "b.png", "etag-d41d8cd98f00b204e9800998ecf8427e"),
    ]


async def test_without_versions_the_same_content_is_the_same_document(
    kit: TestKit, app: Application
) -> None:
    arrivals = app.arrivals(kit.hf)
    uploads = [
        record("a.pdf"),
        record("a.pdf", sequencer="0A1B2C3D4E5F678902"),
        record("a.pdf", sequencer="0A1B2C3D4E5F678903", eTag="900150983cd24fb0d6963f7d28e17f72"),
    ]
    added = [await arrivals.add_s3_event({"Records": [each]}) for each in uploads]
    assert [run.repeated for (run,) in added] == [False, True, False]


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        {},
        "Records",
        {"Records": None},
        {"Records": [3]},
        {"Records": [{}]},
        {"Records": [record(key="%ff.pdf")]},
        {"Records": [record(key=3)]},
        {"Records": [record(key="")]},
        {"Records": [record(key="x" * 2_000)]},
        {"Records": [record(versionId=7)]},
        {"Records": [record(eTag="")]},
        {"Records": [record(versionId="v1"), {}]},
    ],
    ids=range(14),
)
async def test_what_is_no_event_starts_nothing(
    kit: TestKit, app: Application, event: object
) -> None:
    with pytest.raises(InvalidRequest, match="must"):
        await app.arrivals(kit.hf).add_s3_event(event)
    assert not (await kit.hf.list()).runs


async def test_an_event_that_comes_twice_starts_one_run(kit: TestKit, app: Application) -> None:
    event = {"Records": [record("tenants/acme/a.pdf", versionId="v1"), record("b.pdf")]}
    arrivals = app.arrivals(kit.hf)
    first, again = [await arrivals.add_s3_event(event) for _ in range(2)]
    assert [run.id for run in first] == [run.id for run in again]
    assert [run.repeated for run in again] == [True, True]
    assert [run.tenant for run in first] == ["acme", "default"]
    assert (await first[0].input()).bucket == "scans"
