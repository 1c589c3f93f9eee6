"""Gives the nodes of a run the documents of their store."""

from __future__ import annotations

from holdfast.documents.documents import Documents
from holdfast.engine.execution.context import Context
from holdfast.engine.execution.offers import offer_of

__all__ = ["documents_of"]


def documents_of(ctx: Context) -> Documents:
    """Return the documents of the store in which a run is, as ``hf.documents`` in its worker.

    Pass ``tenant=ctx.tenant`` to its methods: a worker runs the runs of all tenants.

    Raises:
        LookupError: the worker was not made by a `Holdfast`, which has documents.
    """
    return offer_of(ctx, Documents)
