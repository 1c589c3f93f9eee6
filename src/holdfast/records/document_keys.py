"""The keys of documents in the table and its indexes.

========================= ========================= ===========================================
partition key             sort key                  item
========================= ========================= ===========================================
``PROJ#{tenant}#{id}``    ``META``                  a project
the same                  ``DOC#{document}``        a document of it
the same                  ``WF#{workflow}``         a workflow of it
``DOC#{tenant}#{id}``     ``META``                  in which project a document of any kind is
the same, or ``WEB#…``    ``WF#{workflow}``         a workflow of a document
``WF#{tenant}#{id}``      ``STEP``                  the steps of a workflow
the same                  ``SEG#{index}``           a segment
``CONN#{tenant}#{id}``    ``{connection}``          a connection that follows a workflow
``COUNTS#{tenant}``       ``{day:06}#{shard:02}``   how many workflows have which status
========================= ========================= ===========================================

An index has four digits. A longer one starts with a letter for its length, so that the order of the
keys is that of the numbers: ``SEG#9999``, ``SEG#a10000``, ``SEG#b100000``.

``GSI1`` has the steps in ``STEP#ANALYSIS_STATUS#{tenant}#{status}#{shard:02}``, sorted by
``{since_ms:013}#{workflow}#{kind}#{document}``: a workflow moves when its status changes. ``GSI2``
has the projects in ``PROJECTS#{tenant}#{shard:02}``, sorted by ``{created_ms:013}#{project}``.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.document import DocumentKind, WorkflowStatus
from holdfast.records.index_keys import shard_of
from holdfast.records.keys import SORTS_LAST, parsed_int
from holdfast.storage import Between, Key, Prefix

__all__ = [
    "COUNT_SHARDS",
    "DOCUMENTS_OF_PROJECT",
    "SEGMENT_INDEX_MAX",
    "WORKFLOWS",
    "ListedWorkflow",
    "connection_key",
    "connections_partition",
    "count_key",
    "counts_partition",
    "document_key",
    "document_pk",
    "listed_project",
    "listed_workflow",
    "pointer_key",
    "project_index_key",
    "project_key",
    "project_pk",
    "project_workflow_key",
    "projects_partition",
    "segment_index",
    "segment_key",
    "segment_sk",
    "segments_range",
    "status_index_key",
    "status_partition",
    "steps_key",
    "workflow_key",
    "workflow_pk",
]

META = "META"
STEP = "STEP"
SEGMENT_INDEX_MAX = 9_999_999
DOCUMENTS_OF_PROJECT = Prefix("DOC#")
WORKFLOWS = Prefix("WF#")
COUNT_SHARDS = 16
"""Over so many items the counts of a tenant are spread, because each begin and end writes one."""
_SHORT_DIGITS = 4
_NEVER = "never"


def project_pk(tenant: str, project: str) -> str:
    """Return the partition of a project."""
    return f"PROJ#{tenant}#{project}"


def project_key(tenant: str, project: str) -> Key:
    """Return the key of a project."""
    return Key(project_pk(tenant, project), META)


def document_key(tenant: str, project: str, document: str) -> Key:
    """Return the key of a document."""
    return Key(project_pk(tenant, project), f"DOC#{document}")


def project_workflow_key(tenant: str, project: str, workflow: str) -> Key:
    """Return the key of a workflow in the list of its project."""
    return Key(project_pk(tenant, project), f"WF#{workflow}")


def pointer_key(tenant: str, document: str) -> Key:
    """Return the key of the item that says in which project a document is.

    It is the same for both kinds, so that an id names one document.
    """
    return Key(f"DOC#{tenant}#{document}", META)


def document_pk(kind: DocumentKind, tenant: str, document: str) -> str:
    """Return the partition of the workflows of a document."""
    return f"{kind}#{tenant}#{document}"


def workflow_key(kind: DocumentKind, tenant: str, document: str, *, workflow: str) -> Key:
    """Return the key of a workflow."""
    return Key(document_pk(kind, tenant, document), f"WF#{workflow}")


def workflow_pk(tenant: str, workflow: str) -> str:
    """Return the partition of the steps and the segments of a workflow."""
    return f"WF#{tenant}#{workflow}"


def steps_key(tenant: str, workflow: str) -> Key:
    """Return the key of the steps of a workflow."""
    return Key(workflow_pk(tenant, workflow), STEP)


def segment_sk(index: int) -> str:
    """Return the sort key of a segment. Keys have the order of their indices."""
    digits = f"{index:0{_SHORT_DIGITS}d}"
    longer = len(digits) - _SHORT_DIGITS
    return f"SEG#{digits}" if longer == 0 else f"SEG#{chr(ord('a') + longer - 1)}{digits}"


def segment_index(sk: str) -> int:
    """Return the index in the sort key of a segment.

    Raises:
        ValueError: the key is not one of a segment.
    """
    index = parsed_int(sk.removeprefix("SEG#").lstrip("abc"))
    if segment_sk(index) != sk:
        raise ValueError(f"{sk!r:.40} is not the key of a segment")
    return index


def segment_key(tenant: str, workflow: str, index: int) -> Key:
    """Return the key of a segment."""
    return Key(workflow_pk(tenant, workflow), segment_sk(index))


def segments_range(after: int) -> Between:
    """Return the range of the segments after an index."""
    return Between(segment_sk(after + 1), f"SEG#{SORTS_LAST}")


def connections_partition(tenant: str, workflow: str) -> str:
    """Return the partition of the connections that follow a workflow."""
    return f"CONN#{tenant}#{workflow}"


def connection_key(tenant: str, workflow: str, connection: str) -> Key:
    """Return the key of a connection."""
    return Key(connections_partition(tenant, workflow), connection)


def counts_partition(tenant: str) -> str:
    """Return the partition of the counts of workflows by status."""
    return f"COUNTS#{tenant}"


def count_key(tenant: str, workflow: str, expires_day: int | None) -> Key:
    """Return the key of the counts among which a workflow is.

    Workflows that are deleted by themselves are counted by the day of that: their counts are
    deleted with them.
    """
    day = _NEVER if expires_day is None else f"{expires_day:06d}"
    return Key(counts_partition(tenant), f"{day}#{shard_of(workflow, COUNT_SHARDS):02d}")


# --- indexes --------------------------------------------------------------------------------------


class ListedWorkflow(NamedTuple):
    """What the index of statuses has of a workflow."""

    since_ms: int
    id: str
    kind: DocumentKind
    document: str

    @classmethod
    def parsed(cls, sk: str) -> ListedWorkflow:
        """Return the entry from its sort key.

        Raises:
            ValueError: the key is not one of a workflow.
        """
        since_ms, workflow, kind, document = sk.split("#")
        if kind not in ("DOC", "WEB"):
            raise ValueError(f"{kind!r:.40} is not a kind of documents")
        return cls(parsed_int(since_ms), workflow, kind, document)

    def key(self, tenant: str) -> Key:
        """Return the key of the workflow."""
        return workflow_key(self.kind, tenant, self.document, workflow=self.id)


def listed_workflow(sk: str) -> ListedWorkflow:
    """Return the workflow of an entry in the index of statuses."""
    return ListedWorkflow.parsed(sk)


def status_partition(tenant: str, status: WorkflowStatus, shard: int) -> str:
    """Return one of the partitions of the workflows that have a status."""
    return f"STEP#ANALYSIS_STATUS#{tenant}#{status}#{shard:02d}"


def status_index_key(
    tenant: str, status: WorkflowStatus, listed: ListedWorkflow, *, shards: int
) -> tuple[str, str]:
    """Return the key of a workflow in the index of statuses."""
    sk = f"{listed.since_ms:013d}#{listed.id}#{listed.kind}#{listed.document}"
    return status_partition(tenant, status, shard_of(listed.id, shards)), sk


def projects_partition(tenant: str, shard: int) -> str:
    """Return one of the partitions of the projects of a tenant."""
    return f"PROJECTS#{tenant}#{shard:02d}"


def project_index_key(
    tenant: str, project: str, *, created_ms: int, shards: int
) -> tuple[str, str]:
    """Return the key of a project in the list of projects."""
    shard = shard_of(project, shards)
    return projects_partition(tenant, shard), f"{created_ms:013d}#{project}"


def listed_project(sk: str) -> str:
    """Return the project of an entry in the list of projects."""
    return sk.split("#")[1]
