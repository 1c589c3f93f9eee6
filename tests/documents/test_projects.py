"""Projects: created, listed, changed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import (
    IdTaken,
    InvalidName,
    InvalidQuery,
    InvalidRequest,
    ProjectNotFound,
)
from holdfast.records.document_keys import project_key
from tests.engine.support import House, store_of


async def test_a_project_has_the_fields_and_the_defaults_of_the_source(either: House) -> None:
    hf = either.open()
    made = await hf.documents.projects.create("Contracts", id="p")
    assert (made.name, made.language, made.ocr_model) == ("Contracts", "en", "pp-ocrv5")
    assert (made.document_prompt, made.pipeline, made.tenant) == ("", "documents", "default")
    assert await hf.documents.projects.get("p") == made
    item = await store_of(hf).table.get(project_key("default", "p"))
    assert item is not None
    assert item["PK"] == "PROJ#default#p"
    assert item["SK"] == "META"
    assert item["data"]["name"] == "Contracts"
    assert item["data"]["ocr_model"] == "pp-ocrv5"


async def test_creating_it_again_is_the_same_project_unless_the_values_differ(
    either: House,
) -> None:
    projects = either.open().documents.projects
    made = await projects.create("Contracts", id="p", document_prompt="Be brief.")
    assert await projects.create("Contracts", id="p", document_prompt="Be brief.") == made
    with pytest.raises(IdTaken, match="'p'"):
        await projects.create("Contracts", id="p", document_prompt="Be long.")


async def test_what_is_given_is_changed_and_the_rest_stays(either: House) -> None:
    projects = either.open().documents.projects
    made = await projects.create("Contracts", id="p", language="de", document_prompt="Be brief.")
    changed = await projects.update("p", name="Treaties", document_prompt="", retention_days=30)
    assert (changed.name, changed.language, changed.document_prompt) == ("Treaties", "de", "")
    assert changed.retention_days == 30
    assert changed.created_at == made.created_at
    assert await projects.get("p") == changed
    assert (await projects.update("p", retention_days=None)).retention_days is None
    assert await projects.update("p") == await projects.get("p")


async def test_projects_are_listed_page_by_page_the_newest_first(either: House) -> None:
    projects = either.open().documents.projects
    names: list[str] = []
    for number in range(25):
        either.clock.advance(1)
        names.append((await projects.create(f"number {number}")).name)
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await projects.list(limit=7, cursor=cursor)
        assert len(page.projects) <= 7
        found += [project.name for project in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == names[::-1]


async def test_tenants_do_not_see_each_other(either: House) -> None:
    projects = either.open().documents.projects
    await projects.create("Contracts", id="p", tenant="acme")
    with pytest.raises(ProjectNotFound):
        await projects.get("p")
    assert (await projects.list()).projects == []
    assert [each.id for each in await projects.list(tenant="acme")] == ["p"]
    await projects.create("Others", id="p")
    assert (await projects.get("p", tenant="acme")).name == "Contracts"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "  "}, "name"),
        ({"name": 7}, "name"),
        ({"name": "x" * 1_000_000}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"name": "n", "id": ""}, "id"),
        ({"name": "n", "id": "a#b"}, "id"),
        ({"name": "n", "id": "a/b"}, "id"),
        ({"name": "n", "id": 5}, "id"),
        ({"name": "n", "language": ""}, "language"),
        ({"name": "n", "document_prompt": "x" * 10_000}, "document_prompt"),
        ({"name": "n", "document_prompt": None}, "document_prompt"),
        ({"name": "n", "ocr_model": "a#b"}, "ocr_model"),
        ({"name": "n", "pipeline": ""}, "pipeline"),
        ({"name": "n", "retention_days": 0}, "retention_days"),
        ({"name": "n", "retention_days": True}, "retention_days"),
        ({"name": "n", "retention_days": 1.5}, "retention_days"),
        ({"name": "n", "tenant": "a#b"}, "tenant"),
    ],
)
async def test_wrong_values_are_refused_before_anything_is_written(
    hf: Holdfast, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.projects.create(**values)
    assert caught.value.field == field
    assert (await hf.documents.projects.list()).projects == []


async def test_the_largest_project_fits_an_item(hf: Holdfast) -> None:
    made = await hf.documents.projects.create(
        "é" * 256, id="p" * 128, document_prompt="x" * 7_000, language="l" * 64
    )
    assert await hf.documents.projects.get(made.id) == made


@pytest.mark.parametrize("cursor", ["", "x", "1#p", 7, f"{1:013d}#a#b", "\x00" * 20])
async def test_a_wrong_cursor_is_refused(hf: Holdfast, cursor: Any) -> None:
    with pytest.raises(InvalidQuery):
        await hf.documents.projects.list(cursor=cursor)
    with pytest.raises(InvalidQuery):
        await hf.documents.projects.list(limit=0)


async def test_a_missing_project_is_said_to_be_missing(hf: Holdfast) -> None:
    projects = hf.documents.projects
    for call in (projects.get("p"), projects.update("p", name="x"), projects.delete("p")):
        with pytest.raises(ProjectNotFound, match="'p'"):
            await call
    with pytest.raises(InvalidName):
        await projects.get("a#b")
