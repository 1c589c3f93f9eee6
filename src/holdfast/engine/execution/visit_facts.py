"""What a node knows of its run and of its visit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.engine.execution.visit import ItemFacts, Visit
from holdfast.errors import InvalidRequest
from holdfast.graph.values import deep_copied
from holdfast.model.event import BranchFailed

__all__ = ["VisitFacts"]


class VisitFacts:
    """What the context of a node tells without doing anything."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._visit.claimed.head.key.id

    @property
    def tenant(self) -> str:
        """The tenant that the run belongs to."""
        return self._visit.claimed.head.key.tenant

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels with which the run was started."""
        return dict(self._visit.claimed.head.labels)

    @property
    def node(self) -> str:
        """The name of the node."""
        return self._visit.node

    @property
    def branch(self) -> str:
        """The branch of the run that the node is in; empty if the run has not forked."""
        return self._visit.branch

    @property
    def visit(self) -> int:
        """The number of this visit in its branch; it stays the same after a resume."""
        return self._visit.visit

    @property
    def attempt(self) -> int:
        """The number of this attempt of the visit, from 1."""
        return self._visit.strand.failed_attempts + 1

    @property
    def key(self) -> str:
        """A unique key of this visit, to be used as an idempotency key for its effects."""
        return self._visit.key

    @property
    def failures(self) -> tuple[BranchFailed, ...]:
        """The failed branches of the fork before this join, if it lets the others go on."""
        return self._visit.strand.failures

    @property
    def index(self) -> int:
        """The index of the item, in an item function.

        Raises:
            InvalidRequest: this is not an item function.
        """
        return self._item().index

    @property
    def given(self) -> dict[str, Any]:
        """What ``ctx.map(given=…)`` was given, in an item function; ``{}`` for nothing.

        Raises:
            InvalidRequest: this is not an item function.
        """
        return deep_copied(self._item().given)

    def _item(self) -> ItemFacts:
        item = self._visit.item
        if item is None:
            raise InvalidRequest("ctx.index and ctx.given are known in an item function only")
        return item

    @property
    def expires_at(self) -> datetime:
        """When the run expires."""
        return datetime.fromtimestamp(self._visit.claimed.head.expires_ms / 1000, UTC)
