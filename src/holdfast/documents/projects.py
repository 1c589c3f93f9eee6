"""`Projects`: creates, lists, changes and deletes the projects of a store."""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.documents.argument_checks import validated_retention_days, validated_text
from holdfast.documents.listing import IndexList, list_page, validated_cursor
from holdfast.documents.loading import CONFLICTS_MAX, DocumentStore, too_many_conflicts
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.errors import ConditionFailed, IdTaken
from holdfast.model.document import Project, ProjectPage
from holdfast.model.names import validated_name
from holdfast.records.document import (
    StoredProject,
    create_project_write,
    is_there,
    project_of,
    update_project_write,
)
from holdfast.records.document_keys import listed_project, project_key, projects_partition
from holdfast.storage import Key
from holdfast.storage.item import Item

__all__ = ["Projects"]

_NAME_BYTES_MAX = 512
_PROMPT_BYTES_MAX = 7_000
_LANGUAGE_BYTES_MAX = 64
# When it was created, and its id.
_CURSOR = re.compile(r"[0-9]{13}#[^#\x00-\x1f]{1,128}")


class Projects:
    """The projects of a store: documents that are processed alike.

    Each method takes the ``tenant`` of the project, by default that of this instance.
    """

    def __init__(self, store: DocumentStore, delete: Callable[[str, str], Awaitable[None]]) -> None:
        self._store = store
        self._delete = delete

    async def create(
        self,
        name: str,
        *,
        id: str | None = None,
        language: str = "en",
        document_prompt: str = "",
        ocr_model: str = "pp-ocrv5",
        pipeline: str = "documents",
        retention_days: int | None = None,
        tenant: str | None = None,
    ) -> Project:
        """Create a project. The same id with the same values again returns the project.

        With ``retention_days``, its documents are deleted by themselves, at the end of the day.

        Raises:
            IdTaken: the id is that of a project with other values, or of one being deleted.
            InvalidRequest: a value is wrong; ``field`` says which.
        """
        store = self._store
        tenant = store.tenant_or_default(tenant)
        wanted = StoredProject(
            tenant=tenant,
            id=store.kernel.ids.new() if id is None else validated_name(id, "id"),
            created_ms=store.now_ms,
            **_validated(
                name=name,
                language=language,
                document_prompt=document_prompt,
                ocr_model=ocr_model,
                pipeline=pipeline,
                retention_days=retention_days,
            ),
        )
        shards = (await store.kernel.get_settings()).list_shards
        write = create_project_write(wanted, shards=shards, token=store.kernel.ids.new())
        try:
            await store.kernel.resolve_write(store.items, write)
        except ConditionFailed as failed:
            item = failed.item
            if item is not None and is_there(item, store.now_ms):
                known = project_of(item)
                if known.is_like(wanted):
                    return known.shown()
            raise IdTaken(
                f"tenant {tenant!r} has another project {wanted.id!r:.160}: choose another id, or "
                "change the project with update()"
            ) from None
        return wanted.shown()

    async def get(self, id: str, *, tenant: str | None = None) -> Project:
        """Return a project.

        Raises:
            ProjectNotFound: the tenant has no such project.
        """
        store = self._store
        return (await store.read_project(store.tenant_or_default(tenant), id)).shown()

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> ProjectPage:
        """Return a page of the tenant's projects, the newest first.

        Raises:
            InvalidQuery: the limit or the cursor is wrong.
        """
        store = self._store
        tenant, limit = store.tenant_or_default(tenant), validated_limit(limit)
        after = validated_cursor(cursor, _CURSOR, "projects")
        shards = (await store.kernel.get_settings()).list_shards

        def key(position: str) -> Key:
            return project_key(tenant, listed_project(position))

        def shown(item: Item) -> Project | None:
            return project_of(item).shown()

        partitions = tuple(projects_partition(tenant, shard) for shard in range(shards))
        source = IndexList("GSI2", partitions, key, shown)
        found, following = await list_page(store, source, limit=limit, cursor=after)
        return ProjectPage(found, following)

    async def update(
        self,
        id: str,
        *,
        name: str | UnsetType = UNSET,
        language: str | UnsetType = UNSET,
        document_prompt: str | UnsetType = UNSET,
        ocr_model: str | UnsetType = UNSET,
        pipeline: str | UnsetType = UNSET,
        retention_days: int | UnsetType | None = UNSET,
        tenant: str | None = None,
    ) -> Project:
        """Change what is given, and return the project. Its retention is that of later documents.

        Raises:
            ProjectNotFound: the tenant has no such project.
            InvalidRequest: a value is wrong; ``field`` says which.
        """
        store = self._store
        tenant = store.tenant_or_default(tenant)
        given = {
            "name": name,
            "language": language,
            "document_prompt": document_prompt,
            "ocr_model": ocr_model,
            "pipeline": pipeline,
            "retention_days": retention_days,
        }
        changes = _validated(**{key: value for key, value in given.items() if value is not UNSET})
        for _ in range(CONFLICTS_MAX):
            before = await store.read_project(tenant, id)
            after = msgspec.structs.replace(before, **changes)
            if after == before:
                return before.shown()
            after = msgspec.structs.replace(after, revision=before.revision + 1)
            write = update_project_write(
                after, before=before.revision, token=store.kernel.ids.new()
            )
            try:
                await store.kernel.resolve_write(store.items, write)
            except ConditionFailed:
                continue
            return after.shown()
        raise too_many_conflicts(f"project {id!r:.160}")

    async def delete(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a project with all its documents. A call after a crash continues.

        Raises:
            ProjectNotFound: the tenant has no such project.
        """
        tenant = self._store.tenant_or_default(tenant)
        await self._delete(tenant, validated_name(id, "project"))


def _validated(**values: Any) -> dict[str, Any]:
    """Return the values of a project, after all checks."""
    checks: builtins.dict[str, Callable[[Any], Any]] = {
        "name": lambda text: validated_text(text, "name", bytes_max=_NAME_BYTES_MAX),
        "language": lambda text: validated_text(text, "language", bytes_max=_LANGUAGE_BYTES_MAX),
        "document_prompt": lambda text: validated_text(
            text, "document_prompt", bytes_max=_PROMPT_BYTES_MAX, empty=True
        ),
        "ocr_model": lambda text: validated_name(text, "ocr_model"),
        "pipeline": lambda text: validated_name(text, "pipeline"),
        "retention_days": validated_retention_days,
    }
    return {field: checks[field](value) for field, value in values.items()}
