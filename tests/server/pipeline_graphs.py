"""Pipelines of documents that do nothing much, for servers in tests."""

from __future__ import annotations

from typing import Any

from holdfast import Graph

__all__ = ["DOCUMENT_GRAPHS", "documents"]

documents = Graph("documents", dict[str, Any])


@documents.node
def read(state: dict[str, Any]) -> dict[str, Any]:
    return {"read": state["workflow"]}


DOCUMENT_GRAPHS = [documents]
